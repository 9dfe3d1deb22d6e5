// The instances of a group that were refused: what they held is no longer theirs.
import { card, h, redraw } from "./dom.js";
import { number, visible, when } from "./format.js";
import { get, path } from "./api.js";
import { Table } from "./table.js";

export class Fenced {
	constructor(group) {
		this.group = group;
		this.element = h("div", { hidden: true });
		this.table = new Table(
			[
				{ title: "Instance", name: true, text: (row) => visible(row.instance || "unknown") },
				{ title: "Member", text: (row) => visible(row.from || "–") },
				{ title: "Held", text: (row) => row.units || "–" },
				{ title: "Token", number: true, wide: true, text: (row) => number(row.token) },
				{ title: "Times", number: true, text: (row) => number(row.times) },
				{ title: "Last", text: (row) => when(row.last_at) },
				{ title: "Why", wide: true, text: (row) => visible(row.reason) },
			],
			{ key: (row) => row.instance + row.from, label: "Fenced instances", none: "None was." },
		);
		redraw(this.element, card("Fenced instances", null, this.table.element));
	}

	async fetch() {
		const found = await get(path("groups", this.group, "fenced"));
		this.element.hidden = !found.length;
		this.table.update(found);
	}
}
