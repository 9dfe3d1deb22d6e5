// Epochs: frontiers, who holds them back, and who has read how far.
import { arrange, badge, card, h, put, redraw, small, tile } from "./dom.js";
import { ago, many, number, span, visible } from "./format.js";
import { get, path } from "./api.js";
import { Table } from "./table.js";
import { endPublisher } from "./actions.js";
import { forgetSubscription } from "./actions-groups.js";
import { may } from "./store.js";
import { drawStairs, frontier, time } from "./stairs.js";
import { View, define } from "./view.js";

class Epochs extends View {
	build() {
		this.title("Epochs");
		this.list = h("div.stack");
		this.places = new Map();
		put(this, h("div.head", h("h1", "Epochs"), h("span.what", "what lies before a frontier is complete")), this.list);
		this.fetch().catch(() => {});
		this.on(window, "resize", () => this.draw());
		// Frontiers advance without rows, too: every change may be one.
		this.follow();
	}

	async fetch() {
		const names = await this.load("/epochs");
		this.drawn = await Promise.all(
			names.map((name) => Promise.all([get(path("epochs", name)), get(path("epochs", name, "steps"))])),
		);
		if (names.length)
			arrange(
				this.list,
				this.drawn.map(([each]) => this.one(each)),
			);
		else redraw(this.list, h("p.none", "No stream is published by epochs."));
		this.draw();
	}

	// After they are in the page: a drawing is as wide as its place.
	draw() {
		this.drawn?.forEach(([{ status }, steps]) => drawStairs(this.places.get(status.stream).stairs, steps, status));
	}

	async forget(name) {
		await forgetSubscription(name);
		this.again(() => this.fetch(), 0);
	}

	// The card of a stream, which is kept as long as the page.
	one({ status, sentences }) {
		const { stream } = status;
		if (!this.places.has(stream)) this.places.set(stream, this.made(stream));
		const place = this.places.get(stream);
		const open = status.status === "open";
		redraw(place.state, badge(status.status, open ? "good" : ""));
		redraw(
			place.tiles,
			tile(
				"Frontier",
				frontier(status.frontier),
				status.moved_us ? `for ${span((status.now_us - status.moved_us) / 1e6)}` : "",
			),
			tile("Open epochs", number(status.open_epochs), many(status.open_rows, "row")),
			tile("Readable since", frontier(status.since), ""),
		);
		redraw(
			place.told,
			openEpochs(status),
			sentences.map((each) => h("p", visible(each))),
		);
		place.publishers.update(status.publishers.map((each) => ({ ...each, open })));
		place.subscriptions.update(status.subscriptions);
		return place.card;
	}

	made(stream) {
		const publishers = new Table(
			[
				{ title: "Publisher", name: true, text: (row) => visible(row.name) },
				{
					title: "State",
					mark: (row) => row.state,
					show: (row) => badge(row.state, row.state === "active" ? "good" : row.state === "lost" ? "bad" : ""),
				},
				{ title: "Holds", text: (row) => frontier(row.held) },
				{
					title: "Holds back",
					mark: (row) => `${row.holds_back}${row.state}`,
					show: (row) =>
						row.holds_back
							? row.state === "active"
								? badge("◆ the next to advance")
								: badge("▲ holds the frontier", "warn")
							: null,
				},
				{ title: "Last commit", text: (row) => (row.last_commit_us ? ago(row.last_commit_us / 1000) : "never") },
				{
					title: "",
					mark: (row) => `${row.open}`,
					show: (row) =>
						may("admin") && row.open ? small("Do without", () => endPublisher(stream, row.name)) : null,
				},
			],
			{ key: (row) => row.name, label: `Publishers of ${stream}`, none: "Nobody publishes." },
		);
		const subscriptions = new Table(
			[
				{ title: "Subscription", name: true, text: (row) => visible(row.name) },
				{ title: "Frontier", text: (row) => frontier(row.frontier) },
				{ title: "Behind", number: true, text: (row) => `${many(row.epochs, "epoch")}, ${many(row.rows, "row")}` },
				{ title: "Since", number: true, text: (row) => span(row.behind_us / 1e6) },
				{
					title: "",
					mark: (row) => row.name,
					show: (row) => (may("admin") ? small("Forget", () => this.forget(row.name)) : null),
				},
			],
			{ key: (row) => row.name, label: `Subscriptions to ${stream}`, none: "Nobody has subscribed by name." },
		);
		const [state, tiles, stairs, told] = [h("span"), h("div.tiles"), h("div"), h("div.stack")];
		const inside = h("div.in.stack", tiles, stairs, told);
		return {
			...{ state, tiles, stairs, told, publishers, subscriptions },
			card: card(stream, state, inside, publishers.element, subscriptions.element),
		};
	}
}

function openEpochs(status) {
	const open = (status.open || []).slice(0, 12);
	if (!open.length) return h("p.sub", "No epoch is open.");
	const most = Math.max(...open.map(([, rows]) => rows));
	return h(
		"div",
		{ class: "owners", "aria-label": "open epochs" },
		open.map(([at, rows]) =>
			h(
				"span",
				{ class: "owner", vars: { "border-left-width": `${4 + Math.round((rows / most) * 28)}px` } },
				`${time(at)}: ${many(rows, "row")}`,
			),
		),
	);
}

define("hr-epochs", Epochs);
