// Loads the console. A browser gives up what is under way when a network comes or goes, and the page
// would stay empty: so it is loaded again, and if that does not help, it is said.
const TRIES = 5;
const KEY = "headrace.tries";

try {
	await import("./app.js");
	sessionStorage.removeItem(KEY);
} catch (problem) {
	const tries = Number(sessionStorage.getItem(KEY)) + 1;
	const told = document.createElement("p");
	told.className = "banner";
	told.role = "alert";
	if (tries < TRIES) {
		sessionStorage.setItem(KEY, tries);
		told.textContent = "The console did not arrive whole. It is loaded again.";
		setTimeout(() => location.reload(), 1000);
	} else {
		sessionStorage.removeItem(KEY);
		told.textContent = "The console could not be loaded. Reload this page to try again.";
		reportError(problem);
	}
	document.body.append(told);
}
