// Who gets in, and who did what.
import { badge, card, h, put, small } from "./dom.js";
import { full, span, visible } from "./format.js";
import { ask } from "./api.js";
import { may, store } from "./store.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";
import { createToken, removeToken } from "./actions.js";

class Access extends View {
	build() {
		this.title("Access");
		this.tokens = new Table(
			[
				{ title: "Token", name: true, text: (row) => visible(row.token) },
				{ title: "Roles", text: (row) => row.roles.join(", ") },
				{ title: "Subjects", text: (row) => row.subjects.join(", ") || "all" },
				{ title: "Made", text: (row) => full(row.created_at) },
				{
					title: "Expires",
					text: (row) => (row.expired ? "expired" : row.expires_at ? full(row.expires_at) : "never"),
				},
				{
					title: "",
					mark: (row) => row.token,
					show: (row) =>
						may("admin") ? small("Remove", () => removeToken(row.token).then(() => this.fetch())) : null,
				},
			],
			{ key: (row) => row.token, label: "Tokens", none: "There are no tokens but the node's own." },
		);
		this.audit = new Table(
			[
				{ title: "Time", text: (row) => full(row.at) },
				{ title: "Token", name: true, text: (row) => visible(row.token) },
				{ title: "From", wide: true, text: (row) => row.address },
				{ title: "What", text: (row) => `${row.method} ${visible(decodeURIComponent(row.path))}` },
				{ title: "About", wide: true, text: (row) => visible(row.about) },
				{
					title: "",
					mark: (row) => `${row.status}`,
					show: (row) =>
						badge(row.status < 400 ? "✓ done" : `✕ refused ${row.status}`, row.status < 400 ? "good" : "bad"),
				},
			],
			{ key: (row) => row.at + row.path, label: "Who did what", none: "Nothing was changed through a node yet." },
		);
		put(
			this,
			h(
				"div.head",
				h("h1", "Access"),
				h("span.what", `you are ${store.me?.token}: ${(store.me?.roles || []).join(", ")}`),
				h("span.grow"),
				may("admin")
					? h("button", { class: "main", onclick: () => createToken().then(() => this.fetch()) }, "New token")
					: null,
				h("button", { onclick: () => ask("POST", "/logout").then(() => location.assign("/")) }, "Leave"),
			),
			h("div.stack", card("Tokens", null, this.tokens.element), card("Who did what", null, this.audit.element)),
		);
		this.fetch().catch(() => {});
	}

	async fetch() {
		this.tokens.update(await this.load("/tokens"));
		this.audit.update(await this.load("/audit"));
	}
}

define("hr-access", Access);
