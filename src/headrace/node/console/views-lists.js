// The overview, streams and groups.
import { badge, card, copyable, h, put, redraw, tile, announce } from "./dom.js";
import { bytes, clock, full, number, rate, short, span, visible } from "./format.js";
import { glyph, spark } from "./charts.js";
import { link, params, set } from "./router.js";
import { store, may } from "./store.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";
import { createGroup, createStream } from "./actions.js";

const words = (text) => text.replaceAll("_", " ");

export function groupColumns({ stream = true } = {}) {
	return [
		{
			title: "Group",
			name: true,
			sort: "group",
			mark: (row) => row.group + row.kind,
			show: (row) => [
				h("a", { href: link("groups", row.group) }, visible(row.group)),
				h("div.sub", `${row.kind}${stream && row.streams.length ? " · " + row.streams.join(", ") : ""}`),
			],
		},
		{
			title: "State",
			sort: "well",
			mark: (row) => row.findings.join() + row.well,
			show: (row) =>
				row.findings.length
					? badge(
							(row.well ? "" : "! ") +
								words(row.findings[0]) +
								(row.findings.length > 1 ? ` +${row.findings.length - 1}` : ""),
							row.well ? "" : "bad",
						)
					: badge("✓ well", "good"),
		},
		{
			title: "Members",
			number: true,
			sort: "members_active",
			text: (row) => `${row.members_active} of ${row.members_wanted}`,
		},
		{ title: "Lag", number: true, sort: "lag_events", text: (row) => (row.exact ? "" : "≤ ") + short(row.lag_events) },
		{
			title: "Behind",
			number: true,
			sort: "lag_seconds",
			text: (row) => (row.lag_events ? span(row.lag_seconds) : "–"),
		},
		{
			title: "Acked",
			number: true,
			sort: "acked_per_s",
			wide: true,
			extra: true,
			text: (row) => rate(row.acked_per_s),
		},
		{ title: "Lag, 10 min", wide: true, mark: (row) => row.trend.join(), show: (row) => spark(row.trend) },
	];
}

export const streamColumns = () => [
	{
		title: "Stream",
		name: true,
		sort: "stream",
		mark: (row) => row.stream + row.subjects.join(),
		show: (row) => [
			h("a", { href: link("streams", row.stream) }, visible(row.stream)),
			h("div.sub", row.subjects.map(visible).join(", ")),
		],
	},
	{ title: "Rate", number: true, sort: "rate_events_per_s", text: (row) => rate(row.rate_events_per_s) },
	{ title: "Events", number: true, sort: "retained_events", text: (row) => short(row.retained_events) },
	{ title: "Size", number: true, sort: "retained_bytes", wide: true, text: (row) => bytes(row.retained_bytes) },
	{
		title: "Segments",
		number: true,
		sort: "segments_open",
		wide: true,
		text: (row) => `${row.segments_open}${row.segments_sealed ? ` + ${row.segments_sealed} sealed` : ""}`,
	},
	{
		title: "Groups",
		number: true,
		sort: "groups",
		text: (row) => `${row.groups.length}${row.lag_events_max ? ` (lag ${short(row.lag_events_max)})` : ""}`,
	},
	{ title: "Last 10 min", wide: true, mark: (row) => row.trend.join(), show: (row) => spark(row.trend) },
];

// What is decided about the epochs of a stream is no group's.
const about = (one) => (one.group.startsWith("epochs/") ? "/epochs" : link("groups", one.group));

export const decisionItem = (one, { group = true } = {}) =>
	h(
		"li",
		{ "data-key": `${one.group} ${one.number}` },
		glyph(one.what),
		h(
			"div",
			group ? h("a", { href: `${about(one)}?decision=${one.number}` }, visible(one.group)) : null,
			group ? " " : null,
			h("b", one.what),
			" ",
			one.from && one.to ? `${visible(one.from)} → ${visible(one.to)}` : visible(one.to || one.from || one.instance),
			one.units ? ` ${one.units}` : "",
			one.took_ms !== null && one.took_ms !== undefined ? ` in ${span(one.took_ms / 1000)}` : "",
			h("div.why", visible(one.reason)),
		),
		h("time", { datetime: one.at, title: full(one.at) }, clock(one.at)),
	);

export function findingsList(findings, { about = true } = {}) {
	return h(
		"ul.findings",
		findings.map((one) =>
			h(
				"li",
				{ "data-key": `${one.finding} ${one.about}`, class: one.needs_person ? "" : "note" },
				h(
					"span",
					{ class: "mark", "aria-label": one.needs_person ? "needs attention" : "note" },
					one.needs_person ? "!" : "·",
				),
				h(
					"div",
					about
						? h(
								"b",
								h(
									"a",
									{ href: store.streams.has(one.about) ? link("streams", one.about) : link("groups", one.about) },
									visible(one.about),
								),
								": ",
							)
						: null,
					visible(one.sentence),
					next(one.next),
				),
			),
		),
	);
}

function next(text) {
	if (!text) return null;
	const at = text.indexOf("headrace ");
	if (at < 0) return h("div.sub", text);
	return h("div.sub", text.slice(0, at), copyable(text.slice(at)));
}

class Overview extends View {
	build() {
		this.title("Overview");
		this.tiles = h("div.tiles");
		this.attention = h("section", { class: "card", "aria-label": "What needs attention" });
		this.groups = new Table(groupColumns(), {
			key: (row) => row.group,
			href: (row) => link("groups", row.group),
			label: "Groups",
			none: "There are no groups yet.",
		});
		this.streams = new Table(streamColumns(), {
			key: (row) => row.stream,
			href: (row) => link("streams", row.stream),
			label: "Streams",
			none: "There are no streams yet.",
		});
		this.feed = h("ul", { class: "feed", tabindex: "0", "aria-label": "Latest decisions" });
		this.more = h("span.sub");
		put(
			this,
			h(
				"div.head",
				h("h1", "Overview"),
				h("span.grow"),
				may("admin")
					? [
							h("button", { onclick: () => createStream() }, "New stream"),
							h("button", { onclick: () => createGroup() }, "New group"),
						]
					: null,
			),
			h(
				"div.stack",
				this.tiles,
				this.attention,
				h(
					"div.cols",
					h(
						"div.stack",
						card("Groups", this.more, this.groups.element),
						card("Streams", h("a", { href: "/streams" }, "all streams"), this.streams.element),
					),
					card("Decisions", h("span.sub", "as they come"), this.feed),
				),
			),
		);
		this.draw();
		this.onChange(() => this.draw());
		this.on(store, "decision", (event) => {
			this.feedIn();
			announce(`${event.detail.length} new decisions`);
		});
		this.feedIn();
	}

	draw() {
		const now = store.overview;
		if (!now) return;
		const groups = [...store.groups.values()].sort(
			(a, b) => a.well - b.well || b.lag_seconds - a.lag_seconds || a.group.localeCompare(b.group),
		);
		const streams = [...store.streams.values()];
		const sum = (rows, field) => rows.reduce((total, row) => total + (row[field] || 0), 0);
		redraw(
			this.tiles,
			tile(
				"Appended",
				rate(sum(streams, "rate_events_per_s")),
				`${now.streams_count} stream${now.streams_count === 1 ? "" : "s"}`,
			),
			tile("Acked", rate(sum(groups, "acked_per_s")), `${now.groups_count} group${now.groups_count === 1 ? "" : "s"}`),
			tile(
				"Furthest behind",
				groups.length ? span(Math.max(0, ...groups.map((row) => (row.lag_events ? row.lag_seconds : 0)))) : "–",
				`${short(sum(groups, "lag_events"))} events not acked`,
			),
			tile("Kept", bytes(sum(streams, "retained_bytes")), `${short(sum(streams, "retained_events"))} events`),
			tile(
				"Pipeline",
				now.pipeline.led ? "runs" : "none",
				now.pipeline.led
					? `${now.pipeline.jobs.length} jobs`
					: now.pipeline.wanted
						? "and groups need one"
						: "and nothing needs one",
			),
			tile("Sessions", `${now.sessions_running} of ${now.sessions_count}`, "run"),
		);
		const person = now.findings.filter((one) => one.needs_person);
		redraw(
			this.attention,
			h(
				"header",
				h("h2", person.length ? `${person.length} need${person.length === 1 ? "s" : ""} attention` : "All is well"),
			),
			now.findings.length
				? findingsList(now.findings.slice(0, 12))
				: h(
						"div.well",
						h("span", { class: "disc", "aria-hidden": "true" }, "✓"),
						h(
							"p",
							streams.length
								? "Every unit is consumed by the member it is given to."
								: ["Nothing here yet. Begin with ", copyable("headrace stream create orders --subjects 'orders.>'")],
						),
					),
		);
		this.groups.update(groups.slice(0, 50));
		redraw(
			this.more,
			now.groups_count > 50
				? h("a", { href: "/groups" }, `all ${number(now.groups_count)} groups`)
				: h("a", { href: "/groups" }, "all groups"),
		);
		this.streams.update(streams.slice(0, 30));
	}

	feedIn() {
		redraw(
			this.feed,
			store.decisions.length
				? store.decisions
						.slice(-60)
						.reverse()
						.map((one) => decisionItem(one))
				: h("li", "", h("span.sub", "Nothing was decided yet.")),
		);
	}
}

class List extends View {
	build() {
		this.title(this.heading);
		const now = params();
		this.sort = now.sort || this.first;
		this.offset = Number(now.offset || 0);
		this.table = new Table(this.columns(), {
			key: this.key,
			href: this.href,
			label: this.heading,
			sort: this.sort,
			onsort: (sort) => {
				this.sort = sort;
				this.offset = 0;
				set({ sort, offset: "" });
				this.fetch();
			},
		});
		this.filter = h("input", {
			type: "search",
			placeholder: "part of the name",
			value: now.q || "",
			"aria-label": "filter by name",
			"data-find": true,
		});
		this.filter.addEventListener("input", () => {
			this.offset = 0;
			set({ q: this.filter.value, offset: "" });
			this.again(() => this.fetch(), 150);
		});
		this.pages = h("span.seg");
		this.count = h("span.sub");
		put(
			this,
			h(
				"div.head",
				h("h1", this.heading),
				this.count,
				h("span.grow"),
				this.filter,
				may("admin") ? h("button", { class: "main", onclick: this.create }, this.make) : null,
			),
			h("section.card", this.table.element),
			h("div.head", this.pages),
		);
		this.fetch().catch(() => {});
		this.follow();
	}

	async fetch() {
		const found = await this.load(this.where, {
			q: this.filter.value,
			sort: this.sort,
			offset: this.offset,
			limit: 100,
		});
		this.table.update(found[this.field]);
		this.count.textContent = `${number(found.count)} in all`;
		redraw(
			this.pages,
			found.count > 100
				? [
						h("button", { disabled: this.offset === 0, onclick: () => this.page(-100) }, "earlier"),
						h(
							"button",
							{ "data-key": "next", disabled: this.offset + 100 >= found.count, onclick: () => this.page(100) },
							`${this.offset + 1}–${Math.min(this.offset + 100, found.count)} · next`,
						),
					]
				: null,
		);
	}

	page(step) {
		this.offset = Math.max(0, this.offset + step);
		set({ offset: this.offset || "" });
		this.fetch().catch(() => {});
	}
}

class Streams extends List {
	heading = "Streams";
	where = "/streams";
	field = "streams";
	first = "stream";
	make = "New stream";
	columns = streamColumns;
	key = (row) => row.stream;
	href = (row) => link("streams", row.stream);
	create = () => createStream();
}

class Groups extends List {
	heading = "Groups";
	where = "/groups";
	field = "groups";
	first = "-lag_seconds";
	make = "New group";
	columns = groupColumns;
	key = (row) => row.group;
	href = (row) => link("groups", row.group);
	create = () => createGroup();
}

define("hr-overview", Overview);
define("hr-streams", Streams);
define("hr-groups", Groups);
