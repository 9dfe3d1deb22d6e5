// Numbers, sizes, times, as people read them.
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const number = (value) => ((value ?? null) === null ? "–" : whole.format(value));

export const many = (count, what) => `${short(count)} ${what}${count === 1 ? "" : "s"}`;

export function short(value) {
	if ((value ?? null) === null) return "–";
	const size = Math.abs(value);
	for (const [step, unit] of [
		[1e12, "T"],
		[1e9, "G"],
		[1e6, "M"],
		[1e4, "k"],
	]) {
		if (size >= step) {
			const base = unit === "k" ? 1e3 : step;
			return `${trim(value / base)}${unit}`;
		}
	}
	return size < 10 && size % 1 ? value.toFixed(1) : whole.format(value);
}
const trim = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, ""));

export function bytes(value) {
	if (!value) return "0 B";
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	let at = 0;
	while (value >= 1024 && at < 4) {
		value /= 1024;
		at += 1;
	}
	return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export const rate = (value) =>
	(value ?? null) === null ? "–" : `${short(Math.round(value * 10) / 10)}/s`;

export function span(seconds) {
	if ((seconds ?? null) === null) return "–";
	if (seconds < 1) return seconds > 0 ? `${Math.round(seconds * 1000)} ms` : "0 s";
	if (seconds < 10) return `${seconds.toFixed(1)} s`;
	const s = Math.round(seconds);
	for (const [size, unit, small, name] of [
		[86400, "d", 3600, "h"],
		[3600, "h", 60, "min"],
		[60, "min", 1, "s"],
	]) {
		if (s >= size) {
			const rest = Math.floor((s % size) / small);
			return `${Math.floor(s / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
		}
	}
	return `${s} s`;
}

export const zone = { utc: localStorage.getItem("headrace.utc") === "1" };
export function setUtc(on) {
	zone.utc = on;
	localStorage.setItem("headrace.utc", on ? "1" : "0");
}

const made = new Map();
function formatter(options) {
	const key = JSON.stringify(options) + zone.utc;
	if (!made.has(key))
		made.set(
			key,
			new Intl.DateTimeFormat("en-GB", { ...options, hourCycle: "h23", timeZone: zone.utc ? "UTC" : undefined }),
		);
	return made.get(key);
}
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
const DAY = { day: "numeric", month: "short" };

export const clock = (at) => formatter(CLOCK).format(new Date(at));
export const minute = (at) => formatter({ hour: "2-digit", minute: "2-digit" }).format(new Date(at));
export const day = (at) => formatter(DAY).format(new Date(at));
export const full = (at) =>
	at ? `${formatter({ ...DAY, year: "numeric", ...CLOCK }).format(new Date(at))}${zone.utc ? " UTC" : ""}` : "–";
export const when = (at) =>
	!at ? "–" : Date.now() - new Date(at) < 20 * 3600e3 ? clock(at) : `${day(at)} ${minute(at)}`;
export const ago = (at) => (at ? `${span(Math.max(0, (Date.now() - new Date(at)) / 1000))} ago` : "never");

// Text from events and names may hold anything: what cannot be seen is shown as such.
export const visible = (text) =>
	String(text ?? "").replace(
		/[\u0000-\u0008\u000b-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
		(c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`,
	);
