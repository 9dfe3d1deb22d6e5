// The checkpoints of a reader group: which there are, what they wait for, and going back to one.
import { badge, card, h, small } from "./dom.js";
import { number, visible } from "./format.js";
import { get, path } from "./api.js";
import { may } from "./store.js";
import { Table } from "./table.js";
import { giveUpCheckpoint, resetTo, takeCheckpoint } from "./actions-groups.js";

export class Checkpoints {
	// `after` is called when something was done here.
	constructor(group, after) {
		this.group = group;
		const admin = may("admin");
		this.table = new Table(
			[
				{ title: "Checkpoint", name: true, text: (row) => visible(row.name) },
				{
					title: "State",
					mark: (row) => row.status + row.blockers,
					show: (row) =>
						row.blockers.length
							? [badge("▲\u00a0waits", "warn"), h("div.sub", `for ${visible(row.blockers.join(", "))}`)]
							: badge("●\u00a0complete", "good"),
				},
				{
					title: "Places",
					wide: true,
					text: (row) =>
						Object.entries(row.positions)
							.slice(0, 6)
							.map(([place, at]) => `${visible(place)} ${at < 0 ? "end" : number(at)}`)
							.join(" · "),
				},
				{
					title: "",
					mark: (row) => row.status,
					show: (row) =>
						admin
							? row.blockers.length
								? small("Give up", () => giveUpCheckpoint(group, row.name).then(after))
								: small("Go back", () => resetTo(group, row.name).then(after))
							: null,
				},
			],
			{ key: (row) => row.name, label: "Checkpoints", none: "It has no checkpoint yet." },
		);
		this.element = card(
			"Checkpoints",
			admin ? small("Take one", () => takeCheckpoint(group).then(after)) : null,
			this.table.element,
		);
	}

	async fetch() {
		const found = await get(path("groups", this.group, "checkpoints"));
		this.table.update(found.filter((each) => each.kind === "normal"));
	}
}
