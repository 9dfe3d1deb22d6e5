// Making and changing elements: text is always text, never markup.
const SVG = "http://www.w3.org/2000/svg";

// `tag` may name classes ("p.sub"); the attributes may be left out.
function fill(make, tag, args) {
	const [name, ...classes] = tag.split(".");
	const [props, ...children] = args[0]?.constructor === Object ? args : [null, ...args];
	const element = make(name);
	if (classes.length) element.setAttribute("class", classes.join(" "));
	for (const [name, value] of Object.entries(props || {})) {
		if (value === null || value === undefined || value === false) continue;
		if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
		else if (name === "vars") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
		else element.setAttribute(name, value === true ? "" : String(value));
	}
	element.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false));
	return element;
}

export const h = (tag, ...args) => fill((name) => document.createElement(name), tag, args);
export const s = (tag, ...args) => fill((name) => document.createElementNS(SVG, name), tag, args);
export const put = (element, ...children) => {
	element.replaceChildren(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false));
	return element;
};

export const card = (title, extra, ...children) =>
	h("section.card", h("header", h("h2", title), h("span.grow"), extra), ...children);

export const tile = (key, value, small) =>
	h("div.tile", h("div.k", key), h("div.v", value), small ? h("div.s", small) : null);

export const badge = (text, kind) => h("span", { class: `badge ${kind || ""}` }, text);

export function copyable(text) {
	const button = h("button", { class: "small plain", type: "button", "aria-label": `copy: ${text}` }, "copy");
	button.addEventListener("click", async (event) => {
		event.stopPropagation();
		try {
			await navigator.clipboard.writeText(text);
			button.textContent = "copied";
		} catch {
			button.textContent = "press Ctrl-C";
		}
		setTimeout(() => {
			button.textContent = "copy";
		}, 1500);
	});
	return h("span.cmd", h("code", text), button);
}

// What is told to screen readers: at most one sentence every two seconds, and only the newest.
let region = null;
let due = "";
let timer = 0;
export function announce(text) {
	due = text;
	if (timer) return;
	timer = setTimeout(() => {
		timer = 0;
		region ??= document.body.appendChild(h("div", { class: "hidden", role: "status", "aria-live": "polite" }));
		region.textContent = due;
	}, 2000);
}
