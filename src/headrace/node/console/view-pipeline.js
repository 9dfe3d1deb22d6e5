// The pipeline: who leads it, and its jobs.
import { badge, card, copyable, h, put, redraw, tile } from "./dom.js";
import { rate, short, visible, when } from "./format.js";
import { Table } from "./table.js";
import { View, define } from "./view.js";

class Pipeline extends View {
	build() {
		this.title("Pipeline");
		this.tiles = h("div.tiles");
		this.jobs = new Table(
			[
				{ title: "Job", name: true, text: (row) => visible(row.job) },
				{
					title: "State",
					mark: (row) => row.state + row.failures,
					show: (row) =>
						badge(
							row.failures
								? `✕ ${row.state}, ${row.failures} failures`
								: row.state === "running"
									? "● running"
									: row.state,
							row.failures ? "bad" : row.state === "running" ? "good" : "",
						),
				},
				{ title: "Rate", number: true, text: (row) => rate(row.rate_per_s) },
				{ title: "Lag", number: true, text: (row) => (row.lag_events === null ? "?" : short(row.lag_events)) },
				{ title: "Events", number: true, text: (row) => short(row.events) },
				{ title: "Since", text: (row) => when(row.since_at) },
				{ title: "Last error", text: (row) => visible(row.last_error || row.note) },
			],
			{ key: (row) => row.job, label: "Jobs", none: "No job runs." },
		);
		put(
			this,
			h("div.head", h("h1", "Pipeline")),
			h("div.stack", this.tiles, card("Jobs", null, this.jobs.element), copyable("headrace pipeline")),
		);
		this.fetch().catch(() => {});
		this.follow();
	}

	async fetch() {
		const found = await this.load("/pipeline");
		redraw(
			this.tiles,
			tile(
				"Led by",
				found.led ? `${found.host || "somebody"}` : "nobody",
				found.led
					? `process ${found.pid}, since ${when(found.leads_since_at)}`
					: found.wanted
						? "and groups need one: headrace pipeline"
						: "and nothing needs one",
			),
			tile("Spark", found.master || "–", ""),
			tile("Jobs", `${found.jobs.length}`, `${found.jobs.filter((each) => each.failures).length} failing`),
		);
		this.jobs.update(found.jobs);
	}
}

define("hr-pipeline", Pipeline);
