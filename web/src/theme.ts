/** Light and dark: the system's choice, or the user's. */

import { computed, effect, signal } from "@preact/signals";

export type Choice = "system" | "light" | "dark";
const KEY = "stoker-theme";
const ORDER: Choice[] = ["system", "light", "dark"];

function stored(): Choice {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // storage is blocked
  }
}

const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
export const choice = signal<Choice>(stored());
export const dark = computed(() => (choice.value === "system" ? systemDark.value : choice.value === "dark"));

export function watchTheme(): void {
  system.addEventListener("change", (event) => {
    systemDark.value = event.matches;
  });
  effect(() => {
    document.documentElement.dataset["theme"] = dark.value ? "dark" : "light";
  });
}

export function nextTheme(): void {
  choice.value = ORDER[(ORDER.indexOf(choice.value) + 1) % ORDER.length] ?? "system";
  try {
    if (choice.value === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, choice.value);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}
