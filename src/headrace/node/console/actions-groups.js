// Acting on shared groups and reader groups: settings, checkpoints, readers; and on subscriptions to epochs.
import { act, given, group, option, quote } from "./actions.js";
import { ask, get, path } from "./api.js";
import { copyable, h } from "./dom.js";

// What the commands of `headrace reader` call a group.
const reader = (name) => quote(name.slice(7));

// [field, title, options]; times are shown in seconds.
const LED = [
	["balance", "A fair share is measured in", ["count", "lag"]],
	["scale_for_members", "Split segments while there are more members", ["no", "yes"]],
	["stall_timeout_ms", "Evict who acks nothing for so many seconds"],
	["revoke_timeout_ms", "Evict who does not give up what it should for so many seconds"],
	["borrower_timeout_ms", "Drop who is silent for so many seconds"],
	["lease_ttl_ms", "Seconds until others may lead in place of a dead leader"],
	["heartbeat_ms", "Seconds between renewals of the leader"],
];
const KEPT = [
	["retain", "Retention keeps", ["positions", "checkpoint", "manual", "nothing"]],
	["checkpoint_every_s", "Seconds between checkpoints that it takes by itself (0: none)"],
	["checkpoints_kept", "Complete checkpoints that are kept by name"],
	["checkpoints_outstanding", "Checkpoints that may wait for readers at a time"],
];
const shown = (field, value) =>
	typeof value === "boolean" ? (value ? "yes" : "no") : String(field.endsWith("_ms") ? value / 1000 : value);
const sent = (field, text) =>
	field === "scale_for_members"
		? text === "yes"
		: Number.isNaN(Number(text))
			? text
			: field.endsWith("_ms")
				? Math.round(text * 1000)
				: Number(text);

function typed(field, text) {
	if (field === "scale_for_members") return ` --${text === "yes" ? "" : "no-"}scale-for-members`;
	const timed = /_m?s$/.test(field);
	return option(field.replace(/_m?s$/, "").replaceAll("_", "-"), timed ? `${text}s` : text);
}

export async function groupSettings(name) {
	const now = await get(group(name, "settings"));
	const of = now.shared || now.reader;
	const rows = now.shared ? LED : KEPT;
	const changed = (v) => rows.map(([field]) => field).filter((field) => v[field] && v[field] !== shown(field, of[field]));
	const verb = now.shared ? `group shared configure ${quote(name)}` : `reader configure ${reader(name)}`;
	return act({
		title: `Settings of ${name}`,
		about: "It goes on with them at once.",
		preview: true,
		verb: "Change them",
		fields: rows.map(([field, title, options]) => ({
			name: field,
			title,
			options,
			value: shown(field, of[field]),
		})),
		command: (v) =>
			`headrace ${verb}${changed(v)
				.map((field) => typed(field, v[field]))
				.join("")}`,
		run: (v, dry) =>
			ask("PATCH", group(name, "settings"), {
				body: {
					...Object.fromEntries(changed(v).map((field) => [field, sent(field, v[field])])),
					revision: now.revision,
					dry_run: dry,
				},
			}),
	});
}

export const takeCheckpoint = (name) =>
	act({
		title: `Take a checkpoint of ${name}`,
		about:
			"Each reader finishes what it has in hand and answers; then it is a place that the group can go back to. It may be complete later than is waited for.",
		verb: "Take it",
		fields: [
			{ name: "checkpoint", title: "Name", hint: "nightly" },
			{ name: "wait", title: "Wait for readers so many seconds", value: "10", type: "number" },
		],
		command: (v) => `headrace reader checkpoint ${reader(name)} ${given(v.checkpoint, "NAME")} --wait ${v.wait || 10}s`,
		run: (v) =>
			ask("POST", group(name, "checkpoints"), {
				body: { checkpoint: v.checkpoint, wait_s: Number(v.wait) || 10 },
			}),
		done: (answer) => [
			h("p", answer.done),
			answer.text ? [h("p.sub", "As a text, which can be kept anywhere:"), copyable(answer.text)] : null,
		],
	});

export const giveUpCheckpoint = (name, checkpoint) =>
	act({
		title: `Give up checkpoint ${checkpoint}`,
		about: "It waits for readers, and is forgotten; nothing is moved.",
		verb: "Give it up",
		command: () => `headrace reader checkpoint ${reader(name)} ${quote(checkpoint)} --cancel`,
		run: () => ask("DELETE", group(name, "checkpoints", checkpoint)),
	});

export const resetTo = (name, checkpoint) =>
	act({
		title: `Reset ${name} to ${checkpoint}`,
		about: "Exactly what was acked at the checkpoint is acked again; readers lose what they hold and go on there.",
		preview: true,
		typed: name,
		bad: true,
		verb: "Reset it",
		command: () => `headrace reader reset ${reader(name)} --checkpoint ${quote(checkpoint)} --yes`,
		run: (v, dry) => ask("POST", group(name, "reset"), { body: { checkpoint, name, dry_run: dry } }),
	});

export const putOffline = (name, member) =>
	act({
		title: `Put ${member} offline`,
		about: "Others read what it had. If its program runs, what it holds does not count any more.",
		preview: true,
		verb: "Put it offline",
		command: () => `headrace reader offline ${reader(name)} ${quote(member)}`,
		run: (v, dry) => ask("POST", group(name, "offline"), { body: { reader: member, dry_run: dry } }),
	});

export const forgetSubscription = (name) =>
	act({
		title: `Forget subscription ${name}`,
		about: "How far it has read is forgotten, for good; a program that holds it is fenced.",
		preview: true,
		typed: name,
		bad: true,
		verb: "Forget it",
		command: () => `headrace epoch forget ${quote(name)}`,
		run: (v, dry) => ask("DELETE", path("epoch-subscriptions", name), { body: { name, dry_run: dry } }),
	});
