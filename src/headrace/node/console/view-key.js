// A key: the segments it lives in, who consumes it, its last events.
import { badge, card, copyable, h, put, tile } from "./dom.js";
import { bytes, short, visible, when } from "./format.js";
import { get, path } from "./api.js";
import { drawMap } from "./map.js";
import { link, params, set } from "./router.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";

class Key extends View {
	build() {
		this.title("Find a key");
		const now = params();
		this.input = h("input", {
			name: "key",
			value: now.key || "",
			size: 30,
			placeholder: "42",
			required: true,
			"data-find": true,
		});
		this.answer = h("div.stack");
		put(
			this,
			h("div.head", h("h1", "Find a key")),
			h(
				"form",
				{
					class: "form",
					onsubmit: (event) => {
						event.preventDefault();
						set({ key: this.input.value });
						this.fetch();
					},
				},
				h("label", "Key, or subject of events that have none", this.input),
				h("button.main", "Find"),
			),
			this.answer,
		);
		if (now.key) this.fetch();
	}

	async fetch() {
		const key = this.input.value;
		put(this.answer, h("p.none", "looking …"));
		let found;
		try {
			found = await get("/keys", { key });
		} catch (problem) {
			put(this.answer, h("p.none.problem", problem.message));
			return;
		}
		const { at, found: all } = found;
		const units = new Table(
			[
				{
					title: "Group",
					name: true,
					mark: (row) => row.group,
					show: (row) => h("a", { href: link("groups", row.group) }, visible(row.group)),
				},
				{ title: "Unit", text: (row) => row.unit },
				{
					title: "Owner",
					mark: (row) => `${row.instance}`,
					show: (row) => (row.instance ? visible(`${row.member} (${row.instance})`) : badge("✕ nobody", "bad")),
				},
				{ title: "Not acked", number: true, text: (row) => `${row.unacked.length}` },
				{ title: "Refused", number: true, text: (row) => `${row.refused.length}` },
				{ title: "Dead", number: true, text: (row) => `${row.dead.length}` },
			],
			{ key: (row) => row.group + row.unit, label: "Who consumes it", none: "No group consumes it." },
		);
		const events = new Table(
			[
				{ title: "Time", text: (row) => when(row.published_at) },
				{
					title: "Place",
					mark: (row) => `${row.stream}${row.segment}${row.offset}`,
					show: (row) =>
						h(
							"a",
							{ href: `${link("streams", row.stream, "events")}?segment=${row.segment}&offset=${row.offset}` },
							`${row.stream} ${row.segment}:${row.offset}`,
						),
				},
				{ title: "Subject", text: (row) => visible(row.subject) },
				{ title: "Size", number: true, text: (row) => bytes(row.size_bytes) },
			],
			{
				key: (row) => `${row.stream}${row.segment}:${row.offset}`,
				label: "Its last events",
				none: "None of the latest events has this key.",
			},
		);
		put(
			this.answer,
			h(
				"div.tiles",
				tile("Place in the key space", at.toFixed(4), "of 0 to 1"),
				tile("Segments", `${all.segments.length}`, "it lives or lived in"),
				tile("Last events", `${all.events.length}`, `of the latest ${short(all.scanned_events)} of each segment`),
			),
			card("Who consumes it", null, units.update(all.units).element),
			card("Its last events", null, events.update([...all.events].reverse()).element),
			copyable(`headrace find '${key}'`),
		);
		const homes = all.segments.some((each) => each.found_events)
			? all.segments.filter((each) => each.found_events)
			: all.segments;
		for (const name of [...new Set(homes.map((each) => each.stream))].slice(0, 4))
			this.map(
				name,
				at,
				all.segments.filter((each) => each.stream === name),
			);
	}

	async map(name, at, homes) {
		const place = h("div");
		this.answer.append(
			card(
				`Its way through ${name}`,
				h("a", { href: link("streams", name) }, "stream"),
				h(
					"div.in",
					place,
					h("p.sub", `segments ${homes.map((each) => each.segment + (each.lives ? " (now)" : "")).join(" → ")}`),
				),
			),
		);
		const data = await get(path("streams", name));
		const to = new Date(data.seen_at).getTime();
		drawMap(place, {
			segments: data.segments,
			from: Math.min(to - 60e3, ...data.segments.map((each) => new Date(each.opened_at).getTime())),
			to,
			key: data.config.partitions ? null : at,
		});
	}
}

define("hr-key", Key);
