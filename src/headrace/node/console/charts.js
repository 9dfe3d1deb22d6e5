// Charts: a sparkline, and lines over time with the decisions marked on the axis.
import { h, put, redraw, s, scroll } from "./dom.js";
import { clock, day, minute, short, when } from "./format.js";

export function spark(values) {
	if (!values || values.length < 2) return h("span.sub", "");
	const top = Math.max(...values, 1e-9);
	const points = values.map((value, at) => [(at / (values.length - 1)) * 108, 24 - (value / top) * 22]);
	const line = "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
	return s(
		"svg",
		{ class: "spark", viewBox: "0 0 108 26", preserveAspectRatio: "none", "aria-hidden": "true" },
		s("path", { class: "area", d: `${line}L108 26L0 26Z` }),
		s("path", { d: line }),
	);
}

const KINDS = {
	good: ["joined", "assigned", "moved", "pinned", "elected", "put back"],
	bad: ["lost", "fenced", "evicted", "dead letter", "deposed", "trimmed past"],
	warn: ["left", "unpinned", "waits", "stands by", "moves"],
	violet: ["split", "merged", "sought", "configured", "finished"],
};
export const DECISIONS = Object.values(KINDS).flat();
export const kindOf = (what) => Object.keys(KINDS).find((kind) => KINDS[kind].includes(what)) || "info";
const SHAPES = {
	good: "M7 2L12 12H2Z",
	bad: "M3 3L11 11M11 3L3 11",
	warn: "M2 2H12L7 12Z",
	violet: "M7 1L13 7L7 13L1 7Z",
	info: "M7 3A4 4 0 1 0 7 11A4 4 0 1 0 7 3Z",
};
export const shape = (kind) =>
	s("path", {
		d: SHAPES[kind],
		class: `g-${kind}`,
		"stroke-width": kind === "bad" ? 2.6 : 0.5,
		"stroke-linecap": "round",
	});
export const glyph = (what) =>
	s("svg", { class: "glyph", viewBox: "0 0 14 14", "aria-hidden": "true" }, shape(kindOf(what)));

export function nice(top) {
	if (!(top > 0)) return 1;
	const power = 10 ** Math.floor(Math.log10(top));
	for (const step of [1, 2, 2.5, 5, 10]) if (top <= step * power) return step * power;
	return top;
}

export function timeTicks(from, to, width) {
	const count = Math.max(2, Math.floor(width / 110));
	const steps = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800].map(
		(each) => each * 1000,
	);
	const step = steps.find((each) => (to - from) / each <= count) || (to - from) / count;
	const found = [];
	for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
	return { found, text: step >= 86400e3 ? day : step < 60e3 ? clock : minute };
}

export function times(svg, { from, to, width, height, x }) {
	const { found, text } = timeTicks(from, to, width);
	for (const at of found) svg.append(s("text", { x: x(at), y: height - 4, "text-anchor": "middle" }, text(at)));
}

// series: [{label, points: [[ms, value]], second}], marks: decisions; then: a moment that is chosen.
export function chart(element, { series, marks = [], from, to, height = 220, unit = short, then = null, onpick }) {
	const width = Math.max(320, element.clientWidth || 800);
	const left = 52,
		right = 14,
		top = 12,
		axis = marks.length ? 34 : 22;
	const bottom = height - axis;
	const x = (at) => left + ((at - from) / Math.max(1, to - from)) * (width - left - right);
	const highest = nice(
		Math.max(...series.filter((each) => !each.second).flatMap((each) => each.points.map((point) => point[1])), 0) || 1,
	);
	const y = (value) => bottom - (value / highest) * (bottom - top);
	const svg = s("svg", {
		class: "chart",
		viewBox: `0 0 ${width} ${height}`,
		height,
		role: "img",
		"aria-label": series.map((each) => each.label).join(", ") + " over time; the table below has the figures",
		...hover({ series, from, to, x, left, right, width, top, bottom, unit, onpick }),
	});
	for (const part of [0, 0.5, 1]) {
		svg.append(
			s("line", { class: "grid", x1: left, x2: width - right, y1: y(highest * part), y2: y(highest * part) }),
			s("text", { x: left - 8, y: y(highest * part) + 4, "text-anchor": "end" }, unit(highest * part)),
		);
	}
	times(svg, { from, to, width, height, x });
	for (const each of series) {
		const shown = each.points.filter(([at]) => at >= from && at <= to);
		if (!shown.length) continue;
		const ownTop = each.second ? nice(Math.max(...shown.map((point) => point[1]))) : highest;
		const ownY = (value) => bottom - (value / ownTop) * (bottom - top);
		// Nothing is drawn where nobody looked; a restart leaves a point a minute.
		const gap = Math.max(150e3, (to - from) / 40);
		const runs = [];
		shown.forEach((point, index) => {
			if (!index || point[0] - shown[index - 1][0] > gap) runs.push([]);
			runs.at(-1).push(point);
		});
		for (const run of runs) {
			const line = "M" + run.map(([at, value]) => `${x(at).toFixed(1)} ${ownY(value).toFixed(1)}`).join("L");
			const under = `${line}L${x(run.at(-1)[0]).toFixed(1)} ${bottom}L${x(run[0][0]).toFixed(1)} ${bottom}Z`;
			if (!each.second) svg.append(s("path.area", { d: under }));
			svg.append(s("path", { class: each.second ? "line2" : "line", d: line }));
		}
	}
	for (const mark of marks) {
		const at = new Date(mark.at).getTime();
		if (at < from || at > to) continue;
		const kind = kindOf(mark.what);
		const place = s(
			"g",
			{ transform: `translate(${x(at) - 6} ${bottom + 3}) scale(.85)` },
			s("title", `${when(mark.at)} ${mark.what} ${mark.to || mark.from || ""}: ${mark.reason}`),
			shape(kind),
		);
		svg.append(s("line", { x1: x(at), x2: x(at), y1: bottom, y2: bottom + 4, class: "grid" }), place);
	}
	if (then !== null && then >= from && then <= to)
		svg.append(s("line", { class: "then", x1: x(then), x2: x(then), y1: top, y2: bottom + 14 }));
	svg.append(s("g", { "data-key": "tip", "pointer-events": "none" }));
	redraw(element, svg);
	const { calls, under } = element.firstChild;
	if (under) calls.pointermove(under); // what is told stays, of what is under the pointer now
}

// What the chart listens to; its last child is for what is told of a moment.
function hover({ series, from, to, x, left, right, width, top, bottom, unit, onpick }) {
	const timeAt = (event) => {
		const box = event.currentTarget.getBoundingClientRect();
		const at = ((event.clientX - box.left) / box.width) * width;
		return from + ((at - left) / (width - left - right)) * (to - from);
	};
	const onpointermove = (event) => {
		const { currentTarget, clientX } = event;
		currentTarget.under = { currentTarget, clientX };
		const at = timeAt(event);
		const layer = currentTarget.lastChild;
		const first = series[0]?.points;
		if (!first?.length || at < from || at > to) return put(layer);
		const near = first.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
		const text = `${when(near[0])}  ${series
			.map((each) => {
				const p = each.points.find((q) => q[0] === near[0]);
				return p ? (each.unit || unit)(p[1]) : "";
			})
			.filter(Boolean)
			.join(" · ")}`;
		const w = text.length * 6.4 + 14;
		const bx = Math.min(Math.max(left, x(near[0]) - w / 2), width - right - w);
		put(
			layer,
			s("line", { class: "cross", x1: x(near[0]), x2: x(near[0]), y1: top, y2: bottom }),
			s("rect", { class: "tipbox", x: bx, y: top, width: w, height: 20, rx: 5 }),
			s("text", { class: "tip", x: bx + 7, y: top + 14 }, text),
		);
		return undefined;
	};
	const onclick = (event) => {
		const at = timeAt(event);
		if (at >= from && at <= to) onpick?.(at);
	};
	const onpointerleave = ({ currentTarget }) => {
		currentTarget.under = null;
		put(currentTarget.lastChild);
	};
	return { onpointermove, onpointerleave, onclick };
}

// The same figures for those who do not see the chart.
export function figures(title, heads, rows) {
	const step = Math.max(1, Math.ceil(rows.length / 40));
	const line = (tag, row) =>
		h(
			"tr",
			row.map((cell, at) => h(tag, { class: at ? "n" : "", scope: tag === "th" && "col" }, cell)),
		);
	const shown = rows.filter((_, at) => at % step === 0).map((row) => line("td", row));
	return h(
		"details",
		h("summary.sub", `${title} as a table`),
		scroll(title, h("table", h("thead", line("th", heads)), h("tbody", shown))),
	);
}
