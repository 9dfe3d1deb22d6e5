// Frontiers as staircases: over time where epochs are numbers, in the plane where they have two parts.
import { figures, timeTicks } from "./charts.js";
import { h, redraw, s } from "./dom.js";
import { many, number, visible, when } from "./format.js";

const LEFT = 56;
const RIGHT = 14;
const TOP = 14;
const HEIGHT = 210;
const BOTTOM = HEIGHT - 24;

export const time = (one) => (Array.isArray(one) ? `(${one.join(", ")})` : String(one));
export const frontier = (one) => (one?.length ? one.map(time).join(" · ") : "everything");

const first = (one) => (Array.isArray(one) ? one[0] : one);
const scale = (low, high, from, to) => (value) => from + ((value - low) / Math.max(1, high - low)) * (to - from);

// What is drawn on: axes with whole numbers, since there is no half of an epoch.
function frame(width, label, low, high) {
	const y = scale(low, high, BOTTOM, TOP);
	const svg = s("svg", {
		class: "chart",
		viewBox: `0 0 ${width} ${HEIGHT}`,
		height: HEIGHT,
		role: "img",
		"aria-label": `${label}; the table below has the figures`,
	});
	for (const value of new Set([low, Math.round((low + high) / 2), high]))
		svg.append(
			s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
			s("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, number(value)),
		);
	return { svg, y };
}

const under = (text, x, anchor = "middle") => s("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, text);

// A mark on the right edge for what a publisher holds: a triangle if the others wait for it.
const holds = (one, x, y) =>
	s(
		"path",
		{
			class: one.holds_back && one.state !== "active" ? "g-warn" : "g-good",
			d: one.holds_back ? `M${x} ${y}l9 -6v12z` : `M${x + 1} ${y - 1}h8v3h-8z`,
		},
		s("title", `${visible(one.name)} (${one.state}) holds ${frontier(one.held)}`),
	);

function overTime(width, steps, status) {
	const to = status.now_us;
	const from = Math.min(steps[0].at_us, to - 60e6);
	const reach = (step) => first(step.reach ?? 0);
	const lower = (step) => (step.frontier.length ? Math.min(...step.frontier.map(first)) : reach(step) + 1);
	const low = Math.min(...steps.map(lower));
	const high = Math.max(low + 1, ...steps.map((step) => Math.max(lower(step), reach(step))));
	const { svg, y } = frame(width, "which epochs were complete, over time", low, high);
	const x = scale(from, to, LEFT, width - RIGHT - 14);
	const line = (of) => steps.map((step, at) => `${at ? "H" : "M"}${x(step.at_us)}${at ? "V" : " "}${y(of(step))}`);
	const end = `H${x(to)}`;
	const stairs = line(lower).join("") + end;
	svg.append(
		s("path", { class: "area", d: `${stairs}V${BOTTOM}H${x(steps[0].at_us)}Z` }),
		s("path", { class: "line2", d: line(reach).join("") + end }),
		s("path", { class: "line", d: stairs }),
	);
	const ticks = timeTicks(from / 1000, to / 1000, width);
	for (const at of ticks.found) svg.append(under(ticks.text(at), x(at * 1000)));
	for (const one of status.publishers)
		for (const held of one.held) svg.append(holds(one, x(to) + 2, Math.min(BOTTOM, Math.max(TOP, y(first(held))))));
	return svg;
}

function inThePlane(width, steps, status) {
	const fronts = steps.map((step) => step.frontier).filter((each) => each.length);
	const open = status.open.map(([at]) => at);
	const every = [...fronts.flat(), ...open, ...(steps.at(-1).reach ? [steps.at(-1).reach] : [])];
	const [lowX, lowY] = [0, 1].map((part) => Math.min(...every.map((each) => each[part])));
	const [highX, highY] = [0, 1].map((part) => Math.max(...every.map((each) => each[part])) + 1);
	const { svg, y } = frame(width, "which epochs are complete, by their two parts", lowY, highY);
	const x = scale(lowX, highX, LEFT, width - RIGHT);
	const stairs = (front) =>
		`M${LEFT} ${TOP}${[...front]
			.sort((a, b) => a[0] - b[0])
			.map((each) => `H${x(each[0])}V${y(each[1])}`)
			.join("")}H${width - RIGHT}`;
	if (!status.frontier.length)
		svg.append(s("rect", { class: "area", x: LEFT, y: TOP, width: width - RIGHT - LEFT, height: BOTTOM - TOP }));
	fronts.slice(-6).forEach((front, at, all) => {
		const now = at === all.length - 1 && status.frontier.length;
		if (now) svg.append(s("path", { class: "area", d: `${stairs(front)}V${BOTTOM}H${LEFT}Z` }));
		svg.append(s("path", { class: "line", "stroke-opacity": now ? 1 : 0.12 + 0.08 * at, d: stairs(front) }));
	});
	const most = Math.max(1, ...status.open.map(([, rows]) => rows));
	for (const [at, rows] of status.open)
		svg.append(
			s(
				"circle",
				{ class: "g-violet", cx: x(at[0]), cy: y(at[1]), r: 3 + 4 * (rows / most) },
				s("title", `${time(at)}: ${many(rows, "row")}`),
			),
		);
	svg.append(under(number(lowX), LEFT, "start"), under(number(highX), width - RIGHT, "end"));
	return svg;
}

export function drawStairs(element, { length, steps, earlier }, status) {
	if (!steps.length) return redraw(element, h("p.sub", "Nothing was published yet."));
	const width = Math.max(320, element.clientWidth || 800);
	const plane = length === 2;
	return redraw(
		element,
		(plane ? inThePlane : overTime)(width, steps, status),
		h(
			"div.legend",
			h("span", "▬ complete below the stairs"),
			plane
				? [h("span", "● open, with rows"), h("span", "thin: how it was before")]
				: [h("span", "┄ the latest epoch with rows"), h("span", "◂ who holds it back")],
			length > 2 ? h("span", `the first of ${length} parts is drawn`) : null,
			earlier ? h("span", "older steps are not shown") : null,
		),
		figures(
			`Steps of ${status.stream}`,
			["at", "frontier", "by", "rows since"],
			steps.map((step) => [
				when(step.at_us / 1000),
				frontier(step.frontier),
				visible(step.publisher) + (step.event ? ` (${step.event})` : ""),
				number(step.rows),
			]),
		),
	);
}
