/** Controls that several views have: pages of a table, chips, a choice of words, a search, keys of a list. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import type { Keys } from "../keys";

const TYPING_MS = 250;

interface PagesProps {
  page: number;
  pages: number;
  turn: (page: number) => void;
  /** The words of the two buttons. */
  words?: [string, string];
  note?: string;
}

export function Pages({ page, pages, turn, words = ["Previous", "Next"], note = "" }: PagesProps): JSX.Element | null {
  if (pages <= 1) return null;
  return (
    <nav class="pages" aria-label="pages">
      <button type="button" disabled={page <= 1} onClick={() => turn(page - 1)}>
        {words[0]}
      </button>
      <span>
        page {page.toLocaleString("en")} of {pages.toLocaleString("en")}
        {note}
      </span>
      <button type="button" disabled={page >= pages} onClick={() => turn(page + 1)}>
        {words[1]}
      </button>
    </nav>
  );
}

interface ChipProps {
  press: () => void;
  /** Whether it is switched on; undefined for one that is no switch. */
  pressed?: boolean;
  label?: string;
  title?: string;
  children: ComponentChildren;
}

/** A round button: a choice, a filter or a switch. */
export function Chip({ press, pressed, label, title, children }: ChipProps): JSX.Element {
  return (
    <button type="button" class="chip" onClick={press} aria-pressed={pressed} aria-label={label} title={title}>
      {children}
    </button>
  );
}

interface ChoicesProps {
  label: string;
  words: string[];
  chosen: string;
  choose: (word: string) => void;
}

export function Choices({ label, words, chosen, choose }: ChoicesProps): JSX.Element {
  return (
    <div class="chips" role="group" aria-label={label}>
      {words.map((word) => (
        <Chip key={word} pressed={word === chosen} press={() => choose(word)}>
          {word}
        </Chip>
      ))}
    </div>
  );
}

interface SearchProps {
  text: string;
  label: string;
  placeholder: string;
  /** Called when the user pauses. */
  search: (text: string) => void;
}

export function Search({ text, label, placeholder, search }: SearchProps): JSX.Element {
  const [typed, setTyped] = useState(text);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setTyped(text), [text]);
  const type = (next: string): void => {
    setTyped(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => search(next.trim()), TYPING_MS);
  };
  return (
    <input
      type="search"
      placeholder={placeholder}
      aria-label={label}
      value={typed}
      onInput={(event) => type(event.currentTarget.value)}
    />
  );
}

/** Keys that move in a list of so many rows. */
export function rowKeys(rows: number, current: number, moveTo: (row: number) => void): Keys {
  const down = (): void => moveTo(Math.min(rows - 1, Math.max(0, current + 1)));
  const up = (): void => moveTo(Math.min(rows - 1, Math.max(0, current - 1)));
  return { j: down, ArrowDown: down, k: up, ArrowUp: up };
}
