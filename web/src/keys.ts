/** Keys: a view says which ones it handles; text fields and dialogs keep theirs. */

import { useEffect, useRef } from "preact/hooks";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

function isBusy(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return true;
  if (document.querySelector("dialog[open]")) return true;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) {
    return !(target instanceof HTMLInputElement && target.type === "checkbox" && event.key !== " ");
  }
  // A button or link with the focus handles its own activation.
  return /^(BUTTON|A|SUMMARY)$/.test(target.tagName) && (event.key === "Enter" || event.key === " ");
}

export function useKeys(keys: Keys): void {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const handle = isBusy(event) ? undefined : current.current[event.key];
      if (!handle) return;
      event.preventDefault();
      handle(event);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
