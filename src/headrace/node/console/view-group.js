// A group: members, units, lag over time with the decisions marked on it, and as it was.
import { badge, card, copyable, h, pair, press, put, redraw, small, spans, tile } from "./dom.js";
import { bytes, clock, full, many, number, rate, short, span, visible, when } from "./format.js";
import { DECISIONS, chart, figures, glyph } from "./charts.js";
import { get, path } from "./api.js";
import { params, set } from "./router.js";
import { may, mayRead, store } from "./store.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";
import { findingsList } from "./views-lists.js";
import {
	changeMapping,
	changeMembers,
	discardLetters,
	putBackLetters,
	removeGroup,
	seekGroup,
	stepDown,
} from "./actions.js";
import { groupSettings, putOffline } from "./actions-groups.js";
import { Checkpoints } from "./checkpoints.js";
import { Fenced } from "./fenced.js";

const SPANS = { "10m": 600, "1h": 3600, "6h": 21600, "24h": 86400 };
const STATES = {
	active: "good",
	"stands by": "info",
	waiting: "info",
	missing: "warn",
	lost: "bad",
	owned: "good",
	unowned: "bad",
	moving: "warn",
	waits: "info",
	finished: "",
};
const SHAPE = { good: "●", bad: "✕", warn: "▲", info: "◆", "": "○" };
const state = (text) => badge(`${SHAPE[STATES[text] ?? ""]}\u00a0${text}`, STATES[text] ?? "");

class Group extends View {
	build() {
		this.name = this.names.group;
		this.where = path("groups", this.name);
		this.title(this.name);
		const now = params();
		const soon = () => this.again(() => this.fetch(), 300);
		this.tiles = h("div.tiles");
		this.findings = h("div");
		this.lag = h("div");
		this.lagTable = h("div");
		this.past = h("div.in");
		this.letters = h("div");
		this.kept = h("div", { hidden: true });
		this.checkpoints = null;
		this.fenced = new Fenced(this.name);
		this.feed = h("ul", { class: "feed", tabindex: "0", "aria-label": "Decisions" });
		this.clockBox = h("div.stack");
		this.spans = spans(SPANS, (span) => {
			set({ span });
			this.fetchLag();
		});
		this.members = new Table(this.memberColumns(), {
			key: (row) => row.member + row.instance,
			label: "Members",
			none: "It has no members yet.",
		});
		this.units = new Table(this.unitColumns(), {
			key: (row) => row.unit,
			label: "Units",
			sort: now.sort || "",
			onsort: (sort) => {
				set({ sort });
				this.offset = 0;
				this.fetchUnits();
			},
			none: "It has no units yet.",
		});
		this.offset = 0;
		this.pages = h("span.sub");
		this.what = h(
			"select",
			{ "aria-label": "which decisions" },
			h("option", { value: "" }, "all"),
			DECISIONS.map((each) => h("option", { value: each, selected: each === now.what }, each)),
		);
		this.what.addEventListener("change", () => {
			set({ what: this.what.value });
			this.fetchDecisions();
		});
		this.at = h("input", { type: "datetime-local", step: "1", "aria-label": "a moment of the past" });
		this.at.addEventListener("change", () => this.asItWas(new Date(this.at.value).getTime()));
		put(
			this,
			h(
				"div.head",
				h("div.crumb", h("a", { href: "/groups" }, "Groups"), " / "),
				h("h1", visible(this.name)),
				(this.kind = h("span.what")),
				h("span.grow"),
				may("admin")
					? [
							h("button", { onclick: () => seekGroup(this.name) }, "Seek"),
							(this.elastic = h(
								"span.seg",
								h("button", { onclick: () => changeMembers(this.name) }, "Members"),
								h("button", { onclick: () => changeMapping(this.name) }, "Mapping"),
							)),
							(this.settings = h("button", { onclick: () => groupSettings(this.name).then(soon), hidden: true }, "Settings")),
							h("button", { onclick: () => removeGroup(this.name, this.data?.line.kind) }, "Remove"),
						]
					: null,
			),
			h(
				"div.stack",
				this.tiles,
				this.findings,
				card(
					"Lag",
					[h("span.sub", "click for a moment of the past"), this.spans],
					h(
						"div.in",
						this.lag,
						h(
							"div.legend",
							h("span", "— events not acked"),
							h("span", "┄ acked a second"),
							["assigned", "lost", "left", "split", "waits"]
								.slice(0, 4)
								.map((each) => h("span", glyph(each), ` ${each}`)),
						),
						this.lagTable,
					),
				),
				card("As it was", this.at, this.past),
				h(
					"div.cols",
					h(
						"div.stack",
						card("Members", null, this.members.element),
						card("Units", this.pages, this.units.element),
						this.kept,
						this.letters,
						this.fenced.element,
					),
					h(
						"div.stack",
						this.clockBox,
						card("Decisions", this.what, this.feed),
						card(
							"At the command line",
							null,
							h(
								"div.in.stack",
								copyable(`headrace group explain '${this.name}'`),
								copyable(`headrace group lag '${this.name}'`),
							),
						),
					),
				),
			),
		);
		this.fetch()
			.then(() => {
				if (now.at) this.asItWas(Number(now.at));
			})
			.catch(() => {});
		this.onChange((change) => {
			const mine = !change || change.gone_groups.includes(this.name);
			if (mine || change.groups.some((each) => each.group === this.name)) this.again(() => this.fetch());
		});
		this.on(store, "decision", (event) => {
			if (event.detail.some((one) => one.group === this.name)) this.again(() => this.fetch(), 300);
		});
		this.on(window, "resize", () => this.drawLag());
	}

	memberColumns() {
		return [
			{ title: "Member", name: true, text: (row) => visible(row.member) },
			{
				title: "State",
				mark: (row) => row.state + row.lost_at,
				show: (row) => [state(row.state), row.lost_at ? h("div.sub", `since ${when(row.lost_at)}`) : null],
			},
			{ title: "Instance", wide: true, text: (row) => visible(row.instance || "none") },
			{ title: "Last heard", wide: true, text: (row) => (row.heard_at ? when(row.heard_at) : "–") },
			{ title: "Units", number: true, text: (row) => `${row.units} of ${row.share}` },
			{
				title: "",
				mark: (row) => row.why + row.instance,
				show: (row) => [
					row.why ? h("div.sub", visible(row.why)) : null,
					may("admin") && row.instance && this.partitioned
						? small("Step down", () => stepDown(this.name, row.member))
						: null,
					may("admin") && this.checkpoints
						? small("Put offline", () => putOffline(this.name, row.member))
						: null,
				],
			},
		];
	}

	unitColumns() {
		return [
			{ title: "Unit", name: true, sort: "unit", text: (row) => visible(row.unit) },
			{ title: "Owner", sort: "member", text: (row) => visible(row.member || "nobody") },
			{ title: "State", sort: "state", mark: (row) => row.state, show: (row) => state(row.state) },
			{ title: "Token", number: true, sort: "token", wide: true, text: (row) => number(row.token) },
			{ title: "Floor", number: true, sort: "floor", wide: true, text: (row) => number(row.floor) },
			{ title: "Head", number: true, sort: "head", wide: true, text: (row) => number(row.head) },
			{
				title: "In flight",
				number: true,
				sort: "in_flight_events",
				wide: true,
				mark: (row) => `${row.in_flight_events}`,
				show: (row) =>
					row.in_flight_events === null
						? h("span", { title: "only its process knows" }, "–")
						: number(row.in_flight_events),
			},
			{ title: "Lag", number: true, sort: "events", text: (row) => (row.exact ? "" : "≤ ") + short(row.lag_events) },
			{ title: "Behind", number: true, sort: "seconds", text: (row) => (row.lag_events ? span(row.lag_seconds) : "–") },
		];
	}

	async fetch() {
		this.data = await this.load(this.where);
		if (this.data.line.kind === "reader" && !this.checkpoints) {
			this.checkpoints = new Checkpoints(this.name, () => this.again(() => this.fetch(), 300));
			put(this.kept, this.checkpoints.element);
			this.kept.hidden = false;
		}
		await Promise.all([
			this.fetchUnits(),
			this.fetchDecisions(),
			this.fetchLag(),
			this.fenced.fetch(),
			this.checkpoints?.fetch(),
		]);
		this.draw();
	}

	async fetchUnits() {
		const found = await get(path("groups", this.name, "units"), {
			sort: this.units.sort,
			limit: 200,
			offset: this.offset,
		});
		this.units.update(found.units);
		redraw(
			this.pages,
			`${number(found.count)} in all`,
			found.count > 200
				? [
						" ",
						h("button", { class: "small", disabled: !this.offset, onclick: () => this.page(-200) }, "earlier"),
						h(
							"button",
							{ class: "small", disabled: this.offset + 200 >= found.count, onclick: () => this.page(200) },
							"next",
						),
					]
				: null,
		);
	}

	page(step) {
		this.offset += step;
		this.fetchUnits();
	}

	async fetchDecisions() {
		const found = await get(path("groups", this.name, "decisions"), {
			limit: 200,
			what: this.what.value.replaceAll(" ", "_"),
		});
		this.decisions = found;
		const chosen = params().decision;
		redraw(
			this.feed,
			found.length
				? [...found].reverse().map((one) => this.decision(one, String(one.number) === chosen))
				: h("li", "", h("span.sub", "Nothing was decided yet.")),
		);
		this.drawClock();
	}

	decision(one, chosen) {
		const named = (each) => `${each.what} ${visible(each.to || each.from)}`;
		const after = this.decisions.filter((each) => each.cause === one.number);
		const cause = this.decisions.find((each) => each.number === one.cause);
		return h(
			"li",
			{ "data-key": one.number, class: chosen ? "pick" : "" },
			glyph(one.what),
			h(
				"details",
				{ open: chosen },
				h(
					"summary",
					h("b", one.what),
					" ",
					one.from && one.to
						? `${visible(one.from)} → ${visible(one.to)}`
						: visible(one.to || one.from || one.instance),
					one.units ? ` · ${one.units}` : "",
				),
				h("div.why", visible(one.reason)),
				h(
					"dl.pairs",
					pair("Number", one.number),
					pair("At", full(one.at)),
					pair("Instance", visible(one.instance)),
					pair("Token", one.token),
					pair("Took", one.took_ms !== null && span(one.took_ms / 1000)),
					pair("Follows from", one.cause && `${one.cause}${cause ? `: ${named(cause)}` : ""}`),
					pair("What followed", after.map((each) => `${each.number} ${named(each)}`).join("; ")),
				),
				small("as it was then", () => this.asItWas(new Date(one.at).getTime())),
			),
			h("time", { datetime: one.at }, when(one.at)),
		);
	}

	async fetchLag() {
		const name = params().span in SPANS ? params().span : "1h";
		press(this.spans, name);
		this.points = await get(path("groups", this.name, "history"), { seconds: SPANS[name] });
		this.seconds = SPANS[name];
		this.drawLag();
	}

	drawLag() {
		if (!this.points || !this.data) return;
		const to = new Date(this.data.seen_at).getTime();
		const series = [
			{
				label: "events not acked",
				points: this.points.map((each) => [each.at_s * 1000, each.figures[0]]),
				unit: (v) => `${short(v)} events`,
			},
			{
				label: "acked a second",
				second: true,
				points: this.points.map((each) => [each.at_s * 1000, each.figures[2]]),
				unit: rate,
			},
		];
		chart(this.lag, {
			series,
			marks: this.decisions || [],
			from: to - this.seconds * 1000,
			to,
			then: this.then ?? null,
			onpick: (at) => this.asItWas(at),
		});
		redraw(
			this.lagTable,
			figures(
				"Lag",
				["at", "events", "behind", "acked"],
				this.points.map((each) => [
					when(each.at_s * 1000),
					number(each.figures[0]),
					span(each.figures[1]),
					rate(each.figures[2]),
				]),
			),
		);
	}

	draw() {
		const { line, members, findings, lag, units_by_state: states } = this.data;
		this.partitioned = line.kind === "static" || line.kind === "elastic";
		if (this.elastic) {
			this.elastic.hidden = line.kind !== "elastic";
			this.settings.hidden = this.partitioned;
		}
		redraw(
			this.kind,
			`${line.kind} group of ${line.streams.join(", ") || line.filter || "nothing yet"}${line.leader ? `, led by ${line.leader}` : ""}`,
		);
		redraw(
			this.tiles,
			tile("Lag", `${line.exact ? "" : "≤ "}${short(line.lag_events)}`, `${bytes(line.lag_bytes)}`),
			tile(
				"Behind",
				line.lag_events ? span(line.lag_seconds) : "nothing",
				lag.source_events ? `${short(lag.source_events)} not partitioned yet` : "since its oldest unacked event",
			),
			tile("Acked", rate(line.acked_per_s), ""),
			tile("Members", `${line.members_active} of ${line.members_wanted}`, "active"),
			tile(
				"Units",
				`${line.units}`,
				Object.entries(states)
					.map(([key, value]) => `${value} ${key}`)
					.join(", "),
			),
			tile("Dead letters", number(line.dead_letters), line.dead_letters ? "wait for somebody" : "none"),
		);
		redraw(this.findings, findings.length ? h("section.card", findingsList(findings, { about: false })) : null);
		this.members.update(members);
		this.drawLetters(line);
		if (!this.then)
			redraw(
				this.past,
				h(
					"p.sub",
					"Choose a moment: click on the chart, or give a time. Who owned what then is told from the record of decisions.",
				),
			);
	}

	drawLetters(line) {
		if (!line.dead_letters || this.letters.firstChild) {
			if (!line.dead_letters) put(this.letters);
			return;
		}
		const list = h("div.in");
		put(
			this.letters,
			card(
				`Dead letters`,
				may("admin")
					? [
							small("Put back", () => putBackLetters(this.name)),
							small("Discard", () => discardLetters(this.name)),
						]
					: null,
				list,
			),
		);
		get(path("groups", this.name, "dead-letters", "reasons")).then((found) =>
			put(
				list,
				h(
					"ul",
					found.map((each) =>
						h(
							"li",
							h("b", `${number(each.letters)}× ${visible(each.reason)}`),
							" ",
							h("span.sub", visible(each.error)),
						),
					),
				),
			),
		);
		if (mayRead())
			get(path("groups", this.name, "dead-letters"), { limit: 20 })
				.then((found) =>
					list.append(
						...found.map((each) =>
							h(
								"details",
								h(
									"summary",
									`${each.id} · ${visible(each.subject)} · ${many(each.attempts, "attempt")} · ${when(each.died_at)}`,
								),
								h("p.sub", visible(each.error)),
								h("div.value", visible(each.value)),
							),
						),
					),
				)
				.catch(() => {});
	}

	// The last loss; where nobody has taken over from it, also the last from which somebody has.
	drawClock() {
		const losses = (this.decisions || []).filter((one) => ["lost", "evicted", "deposed"].includes(one.what)).reverse();
		const clocks = losses.slice(0, 50).map((lost) => this.clockOf(lost));
		const taken = clocks.findIndex((each) => each.taken);
		redraw(this.clockBox, clocks.filter((each, at) => !at || at === taken).map((each) => each.shown));
	}

	// The take-over clock: last heard, lease out, claimed.
	clockOf(lost) {
		const at = (one) => new Date(one.at).getTime();
		const told = /last heard (?:at )?(\S+Z)/.exec(lost.reason)?.[1];
		const silent = /^silent for ([\d.]+) s/.exec(lost.reason)?.[1]; // until it was given up
		const heard = told ? new Date(told).getTime() : silent ? at(lost) - 1000 * silent : null;
		// What followed from it: by its cause, or about whom was lost or what it held.
		const numbers = new Set([lost.number]);
		const owner = new Map();
		for (const one of this.decisions) if (one.number < lost.number && one.to) owner.set(one.units, one.to);
		const after = this.decisions.filter((one) => {
			const follows =
				one.number > lost.number &&
				at(one) - at(lost) < 600e3 &&
				(numbers.has(one.cause) || [one.to, one.from].includes(lost.from) ||
					(one.units && owner.get(one.units) === lost.from));
			if (follows) numbers.add(one.number);
			return follows;
		});
		const claims = ["pinned", "elected", "assigned", "moved"]
			.map((what) => after.find((one) => one.what === what))
			.filter(Boolean);
		const steps = [
			...(heard ? [["last heard", heard]] : []),
			[`lease out: ${lost.from || lost.instance} is ${lost.what}`, at(lost)],
			...claims.map((one) => [`${one.what} ${one.to || one.instance}`, at(one)]),
		].sort((a, b) => a[1] - b[1]);
		return {
			taken: claims.length > 0,
			shown: card(
				claims.length ? "Last take-over" : "Lost, and nobody took over",
				h("span.sub", when(lost.at)),
				h(
					"div.in",
					h("p.why", visible(lost.reason)),
					h(
						"div.clock",
						steps.map(([text, time], index) => [
							index ? h("span.gap", `→ ${span((time - steps[index - 1][1]) / 1000)} →`) : null,
							h("span.step", visible(text), h("div.sub", clock(time))),
						]),
					),
				),
			),
		};
	}

	async asItWas(at) {
		if (!Number.isFinite(at)) return;
		this.then = at;
		set({ at: Math.round(at) });
		this.drawLag();
		const then = await get(path("groups", this.name, "past"), { at: new Date(at).toISOString() });
		const owners = new Map();
		for (const each of then.units) owners.set(each.member, [...(owners.get(each.member) || []), each.unit]);
		redraw(
			this.past,
			h(
				"p",
				h("b", full(at)),
				then.leader ? ` · led by ${then.leader}` : "",
				then.last
					? ` · last decision before it: ${then.last.number} ${then.last.what} ${visible(then.last.to || then.last.from)}`
					: " · nothing had been decided",
			),
			then.known_from_at && new Date(then.known_from_at).getTime() > at
				? h("p.sub", `The record begins at ${full(then.known_from_at)}.`)
				: null,
			then.units.length
				? [...owners].map(([member, units]) =>
						h(
							"div",
							h(
								"h3",
								member ? visible(member) : "nobody",
								h("span.sub", ` ${units.length} unit${units.length === 1 ? "" : "s"}`),
							),
							h(
								"div.owners",
								units
									.slice(0, 60)
									.map((unit) => h("span", { class: `owner ${member ? "" : "nobody"}` }, visible(unit))),
								units.length > 60 ? h("span.sub", `and ${units.length - 60} more`) : null,
							),
						),
					)
				: h("p.sub", "Nobody owned anything then."),
			small("back to now", () => {
				this.then = null;
				set({ at: "" });
				this.draw();
				this.drawLag();
			}),
		);
	}
}

define("hr-group", Group);
