// The map of a stream: time to the right, key space downwards, one tile for each segment.
import { redraw, s } from "./dom.js";
import { bytes, number, short, span, when } from "./format.js";
import { times } from "./charts.js";

export function drawMap(element, { segments, from, to, group = null, key = null, onpick }) {
	const width = Math.max(320, element.clientWidth || 800),
		height = 340,
		left = 46,
		right = 10,
		top = 8,
		bottom = height - 22;
	const x = (at) =>
		left + ((Math.max(from, Math.min(to, at)) - from) / Math.max(1, to - from)) * (width - left - right);
	const y = (part) => top + part * (bottom - top);
	const begin = (each) => new Date(each.opened_at).getTime();
	const end = (each) => (each.sealed_at ? new Date(each.sealed_at).getTime() : to);
	const perSecond = (each) => each.events / Math.max(1, (end(each) - begin(each)) / 1000);
	const shownSegments = segments.filter((each) => end(each) >= from && begin(each) <= to);
	const most = Math.max(...shownSegments.map(perSecond), 1e-9);
	const owned = new Map((group?.segments || []).map((each) => [each.segment, each]));
	const svg = s("svg", {
		class: "chart map",
		viewBox: `0 0 ${width} ${height}`,
		height,
		role: "group",
		"aria-label": `map of ${segments.length} segments: time to the right, key space downwards; the table below lists them`,
	});
	svg.append(
		s(
			"defs",
			s(
				"pattern",
				{ id: "sealed", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
				s("line", { x1: 0, x2: 0, y1: 0, y2: 6, stroke: "var(--card)", "stroke-width": 1.2, opacity: 0.5 }),
			),
		),
	);
	for (const part of [0, 0.25, 0.5, 0.75, 1])
		svg.append(
			s(
				"text",
				{ x: left - 6, y: y(part) + (part === 0 ? 9 : part === 1 ? 0 : 4), "text-anchor": "end" },
				part.toString().replace("0.", "."),
			),
		);
	times(svg, { from, to, width, height, x });
	for (const each of shownSegments) {
		const x1 = x(begin(each)),
			x2 = Math.max(x1 + 2, x(end(each))),
			y1 = y(each.key_from),
			y2 = y(each.key_to);
		const load = perSecond(each) / most;
		const lived = each.sealed_at ? `sealed after ${span((end(each) - begin(each)) / 1000)}` : "open";
		const label = [
			`segment ${each.segment}, ${lived} since ${when(each.opened_at)}`,
			`${number(each.events)} events, ${short(perSecond(each))}/s`,
			`${bytes(each.retained_bytes)} kept`,
			...(each.predecessors.length ? [`follows ${each.predecessors.join(", ")}`] : []),
		].join(", ");
		const box = s(
			"g",
			{
				"data-key": each.segment,
				tabindex: 0,
				role: "button",
				"aria-label": label,
				onclick: () => onpick?.(each),
				onkeydown: (event) => {
					if (event.key === "Enter" || event.key === " ") {
						event.preventDefault();
						onpick?.(each);
					}
				},
			},
			s("title", label),
			s("rect", {
				class: "tile-seg",
				x: x1,
				y: y1,
				width: x2 - x1,
				height: Math.max(1, y2 - y1),
				rx: 3,
				"fill-opacity": (0.18 + 0.72 * load).toFixed(3),
			}),
		);
		if (each.sealed_at)
			box.append(
				s("rect", {
					x: x1,
					y: y1,
					width: x2 - x1,
					height: Math.max(1, y2 - y1),
					fill: "url(#sealed)",
				}),
			);
		const own = owned.get(each.segment);
		if (own) {
			const part = own.head ? Math.min(1, own.floor / own.head) : 1;
			box.append(
				s("rect", { class: "done", x: x1 + 1, y: y2 - 5, width: Math.max(0, (x2 - x1 - 2) * part), height: 4, rx: 2 }),
			);
			if (own.state === "unowned" && own.lag_events)
				box.append(
					s("rect", {
						class: "unowned",
						x: x1 + 2,
						y: y1 + 2,
						width: Math.max(1, x2 - x1 - 4),
						height: Math.max(1, y2 - y1 - 4),
						rx: 3,
					}),
				);
		}
		const text = own?.member && y2 - y1 > 26 ? `${each.segment} · ${own.member}` : `${each.segment}`;
		if (y2 - y1 > 13 && x2 - x1 > text.length * 7)
			box.append(s("text", { class: "label", x: x1 + 6, y: y1 + 14 }, text));
		else if (y2 - y1 > 13 && x2 - x1 > 16)
			box.append(s("text", { class: "label", x: x1 + 4, y: y1 + 14 }, `${each.segment}`));
		svg.append(box);
	}
	for (const each of shownSegments)
		if (each.sealed_at && end(each) >= from)
			svg.append(
				s("line", { class: "edge", x1: x(end(each)), x2: x(end(each)), y1: y(each.key_from), y2: y(each.key_to) }),
			);
	if (key !== null)
		svg.append(
			s("line", { class: "keyhalo", x1: left, x2: width - right, y1: y(key), y2: y(key) }),
			s("line", { class: "keyline", x1: left, x2: width - right, y1: y(key), y2: y(key) }),
		);
	redraw(element, svg);
}
