// Sessions, who runs them, and what they subscribe to.
import { badge, card, h, put, small } from "./dom.js";
import { visible, when } from "./format.js";
import { may } from "./store.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";
import { removeSession } from "./actions.js";

class Sessions extends View {
	build() {
		this.title("Sessions");
		this.table = new Table(
			[
				{ title: "Session", name: true, text: (row) => visible(row.session) },
				{
					title: "State",
					mark: (row) => `${row.instance}`,
					show: (row) => (row.instance ? badge("● runs", "good") : badge("○ nobody runs it")),
				},
				{ title: "Run by", wide: true, text: (row) => visible(row.instance || "–") },
				{ title: "Subscriptions", text: (row) => row.subscriptions.map(visible).join(", ") },
				{ title: "Kept until", text: (row) => (row.expires_at ? when(row.expires_at) : "–") },
				{
					title: "",
					mark: (row) => row.session,
					show: (row) => (may("admin") ? small("Remove", () => removeSession(row.session)) : null),
				},
			],
			{ key: (row) => row.session, label: "Sessions", none: "There are no sessions." },
		);
		put(this, h("div.head", h("h1", "Sessions")), h("section.card", this.table.element));
		this.fetch().catch(() => {});
		this.follow();
	}

	async fetch() {
		this.table.update(await this.load("/sessions"));
	}
}

define("hr-sessions", Sessions);
