// The page as a whole: tabs, theme, the API key.

import { startEngineView } from "./engine.js";
import { startPlayground } from "./playground.js";
import { byId } from "./shared.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

function select(tab) {
  for (const other of tabs) {
    const isSelected = other === tab;
    other.setAttribute("aria-selected", String(isSelected));
    other.tabIndex = isSelected ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !isSelected;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  document.dispatchEvent(new CustomEvent("view", { detail: tab.getAttribute("aria-controls") }));
}

for (const tab of tabs) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    next.focus();
    select(next);
  });
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function useTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("theme"));
}

byId("theme-button").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  localStorage.setItem("octavo-theme", theme);
  useTheme(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => useTheme(null));
useTheme(localStorage.getItem("octavo-theme"));

const dialog = byId("key-dialog");
byId("key-button").addEventListener("click", () => {
  byId("key").value = sessionStorage.getItem("octavo-key") ?? "";
  dialog.showModal();
});
dialog.addEventListener("close", () => {
  if (dialog.returnValue !== "save") return;
  sessionStorage.setItem("octavo-key", byId("key").value.trim());
  document.dispatchEvent(new CustomEvent("key"));
});

function selectByAddress() {
  select(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);
}

startPlayground();
startEngineView();
addEventListener("hashchange", selectByAddress);
selectByAddress();
