// A stream: its map, its segments, its groups, its settings.
import { badge, card, copyable, h, pair, press, put, redraw, s, small, spans, tile } from "./dom.js";
import { ago, bytes, full, number, rate, short, span, visible, when } from "./format.js";
import { chart, figures } from "./charts.js";
import { drawMap } from "./map.js";
import { get, path } from "./api.js";
import { link, params, set } from "./router.js";
import { may, mayRead } from "./store.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";
import { groupColumns } from "./views-lists.js";
import { mergeSegments, publishEvent, removeStream, splitSegment, streamSettings, trimStream } from "./actions.js";

const SPANS = { "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, all: 0 };

class Stream extends View {
	build() {
		this.name = this.names.stream;
		this.title(this.name);
		this.tiles = h("div.tiles");
		this.map = h("div");
		this.rateChart = h("div");
		this.table = h("div");
		this.chooser = h("select", { "aria-label": "whose progress lies on the map" });
		this.chooser.addEventListener("change", () => {
			set({ group: this.chooser.value });
			this.draw();
		});
		this.spans = spans(SPANS, (span) => {
			set({ span });
			this.draw();
		});
		this.segments = new Table(this.columns(), { key: (row) => row.segment, label: "Segments" });
		this.groups = new Table(groupColumns({ stream: false }), {
			key: (row) => row.group,
			href: (row) => link("groups", row.group),
			label: "Groups that consume it",
			none: "No group consumes it yet.",
		});
		this.settings = h("div.in");
		this.picked = h("div.in");
		put(
			this,
			h(
				"div.head",
				h("div.crumb", h("a", { href: "/streams" }, "Streams"), " / "),
				h("h1", visible(this.name)),
				h("span.grow"),
				mayRead() ? h("a", { class: "button", href: link("streams", this.name, "events") }, "Events") : null,
				may("publish") ? h("button", { onclick: () => publishEvent(this.data?.config) }, "Publish") : null,
				may("admin")
					? [
							h("button", { onclick: () => this.data && streamSettings(this.data) }, "Settings"),
							h("button", { onclick: () => trimStream(this.name) }, "Trim"),
							h("button", { onclick: () => removeStream(this.name) }, "Remove"),
						]
					: null,
			),
			h(
				"div.stack",
				this.tiles,
				card(
					"Map",
					[h("label.sub", "progress of ", this.chooser), this.spans],
					h("div.in", this.map, this.legend()),
					this.picked,
				),
				card("Groups", null, this.groups.element),
				h(
					"div.halves",
					card("Appended", h("span.sub", "events a second, last hour"), h("div.in", this.rateChart, this.table)),
					card("Settings", null, this.settings),
				),
				card("Segments", null, this.segments.element),
			),
		);
		this.fetch().catch(() => {});
		this.onChange((change) => {
			const { groups = [] } = this.data?.line ?? {};
			if (
				!change ||
				change.gone_streams.includes(this.name) ||
				change.streams.some((each) => each.stream === this.name) ||
				change.groups.some((each) => groups.includes(each.group))
			)
				this.again(() => this.fetch());
		});
		this.on(window, "resize", () => this.draw());
	}

	legend() {
		const box = (rect) => s("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, s("rect", rect));
		const load = (opacity) =>
			box({ width: 14, height: 14, rx: 3, fill: "var(--accent)", "fill-opacity": opacity });
		return h(
			"div.legend",
			h("span", load(0.2), " little load"),
			h("span", load(0.9), " much load"),
			h("span", box({ y: 8, width: 14, height: 4, rx: 2, class: "g-info" }), " acked by the group"),
			h("span", box({ x: 1, y: 1, width: 12, height: 12, rx: 3, class: "unowned" }), " nobody's"),
			h("span", "hatched: sealed; a split or a merge is where tiles end and others begin"),
		);
	}

	columns() {
		return [
			{ title: "Segment", name: true, text: (row) => `${row.segment}` },
			{
				title: "State",
				mark: (row) => `${row.sealed_at}`,
				show: (row) => (row.sealed_at ? badge(`sealed ${when(row.sealed_at)}`) : badge("open", "good")),
			},
			{ title: "Keys", wide: true, text: (row) => `${row.key_from.toFixed(3)} – ${row.key_to.toFixed(3)}` },
			{ title: "Events", number: true, text: (row) => short(row.retained_events) },
			{ title: "Size", number: true, text: (row) => bytes(row.retained_bytes) },
			{ title: "Follows", wide: true, text: (row) => row.predecessors.join(", ") },
		];
	}

	async fetch() {
		this.data = await this.load(path("streams", this.name));
		this.points = await get(path("streams", this.name, "history"));
		this.draw();
	}

	draw() {
		const { data } = this;
		if (!data) return;
		const now = params();
		const { line } = data;
		redraw(
			this.tiles,
			tile("Appended", rate(line.rate_events_per_s), `${number(line.appended_events)} since it was made`),
			tile("Kept", `${short(line.retained_events)}`, `${bytes(line.retained_bytes)}`),
			tile("Segments", `${line.segments_open}`, `${line.segments_sealed} sealed`),
			tile(
				"Groups",
				`${line.groups.length}`,
				line.lag_events_max ? `at most ${short(line.lag_events_max)} behind` : "none is behind",
			),
			tile("Newest event", line.newest_at ? ago(line.newest_at) : "–", full(line.newest_at)),
		);
		const named = (name) => data.groups.find((each) => each.line.group === name);
		const group = now.group ? named(now.group) : named(this.chooser.value) || data.groups[0];
		// Whoever is choosing does so from the list as it was: browsers count its lines.
		if (document.activeElement !== this.chooser)
			put(
				this.chooser,
				h("option", { value: "-" }, "nobody"),
				data.groups.map((each) => h("option", { value: each.line.group }, each.line.group)),
			);
		this.chooser.value = group?.line.group ?? "-";
		const name = now.span && now.span in SPANS ? now.span : "all";
		press(this.spans, name);
		const to = new Date(data.seen_at).getTime();
		const first = Math.min(...data.segments.map((each) => new Date(each.opened_at).getTime()), to - 60000);
		const from = SPANS[name] ? to - SPANS[name] * 1000 : first;
		drawMap(this.map, {
			segments: data.segments,
			from,
			to,
			group,
			onpick: (each) => {
				set({ segment: each.segment });
				this.pick(each);
			},
		});
		if (now.segment) {
			const each = data.segments.find((one) => String(one.segment) === now.segment);
			if (each) this.pick(each);
		}
		const points = this.points.map((each) => [each.at_s * 1000, each.figures[0]]);
		chart(this.rateChart, {
			series: [{ label: "events a second", points }],
			from: to - 3600e3,
			to,
			height: 180,
			unit: (v) => rate(v),
		});
		redraw(
			this.table,
			figures(
				"Appended",
				["at", "events/s", "bytes/s"],
				this.points.map((each) => [when(each.at_s * 1000), rate(each.figures[0]), bytes(each.figures[1])]),
			),
		);
		this.groups.update(data.groups.map((each) => each.line));
		this.segments.update([...data.segments].sort((a, b) => !!a.sealed_at - !!b.sealed_at || a.key_from - b.key_from));
		const { config } = data;
		redraw(
			this.settings,
			h(
				"dl.pairs",
				pair("Subjects", config.subjects.map(visible).join(", ")),
				pair(
					"Key",
					config.key_tokens?.length ? `tokens ${config.key_tokens.join(", ")}` : "the event's own, else the subject",
				),
				pair("Kept", retention(config.retention)),
				pair("Scaled", scaling(config.scaling)),
				pair("Partitions", config.partitions),
				pair("Made", full(data.created_at)),
				pair("Read it", copyable(`headrace read ${this.name} --follow`)),
			),
		);
	}

	pick(each) {
		const owners = this.data.groups
			.map((group) => ({ group: group.line.group, own: group.segments.find((one) => one.segment === each.segment) }))
			.filter((one) => one.own);
		redraw(
			this.picked,
			h(
				"div.preview",
				{ "data-key": each.segment },
				h("h3", `Segment ${each.segment}`),
				h(
					"p.sub",
					`${full(each.opened_at)} – ${each.sealed_at ? full(each.sealed_at) : "now"}; offsets ${number(each.tail)} to ${number(each.head)}; ${each.successors.length ? `followed by ${each.successors.join(", ")}` : "takes events"}`,
				),
				owners.map(({ group, own }) =>
					h(
						"p",
						h("a", { href: link("groups", group) }, group),
						`: ${own.member || "nobody"}, floor ${number(own.floor)} of ${number(own.head)}, ${short(own.lag_events)} not acked`,
					),
				),
				h(
					"p.form",
					mayRead()
						? h("a", { href: `${link("streams", this.name, "events")}?segments=${each.segment}` }, "its events")
						: null,
					may("admin") && !each.sealed_at
						? [
								small("Split", () => splitSegment(this.name, each.segment)),
								small("Merge with its neighbour", () => mergeSegments(this.name, this.data.segments, each)),
							]
						: null,
				),
			),
		);
	}
}

function limits(one) {
	const parts = [
		one?.age_s && span(one.age_s),
		one?.bytes && bytes(one.bytes),
		one?.events && `${number(one.events)} events`,
	].filter(Boolean);
	return parts.length ? parts.join(", ") : "everything";
}
const retention = (one) =>
	!one || one.type === "limits"
		? limits(one)
		: one.type === "consumed"
			? "until a group has acked it"
			: `what groups need, at least ${limits(one.keep)}, at most ${limits(one.cap)}`;
const scaling = (one) =>
	!one || one.type === "fixed"
		? "on request"
		: `about ${number(one.target_per_s)} ${one.type === "events" ? "events" : "bytes"} a second for each segment`;

define("hr-stream", Stream);
