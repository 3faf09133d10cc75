/** Boxes with words: tiles, facts, cards of charts, legends, heads of tables. */

import type { ComponentChildren, JSX } from "preact";

interface TileProps {
  name: string;
  value: number | string;
  tone?: string;
  href?: string;
}

export function Tile({ name, value, tone = "", href }: TileProps): JSX.Element {
  const inside = (
    <>
      <span class="value">{typeof value === "number" ? value.toLocaleString("en") : value}</span>
      <span class="name">{name}</span>
    </>
  );
  return href ? (
    <a class={`tile ${tone}`} href={href}>
      {inside}
    </a>
  ) : (
    <div class={`tile ${tone}`}>{inside}</div>
  );
}

/** A name and what is known of it; nothing for an empty text. */
export function Fact({ name, children }: { name: string; children: ComponentChildren }): JSX.Element | null {
  return children === "" || children === null ? null : (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

interface FigureProps {
  caption: ComponentChildren;
  /** Whether the caption holds controls. */
  tools?: boolean;
  children: ComponentChildren;
}

export function Figure({ caption, tools = false, children }: FigureProps): JSX.Element {
  return (
    <figure class="card">
      <figcaption class={tools ? "with-tools" : ""}>{caption}</figcaption>
      {children}
    </figure>
  );
}

interface EntryProps {
  swatch?: string;
  colour?: string;
  children: ComponentChildren;
}

/** A line of a legend; `swatch` is a class, and `colour` one of the style sheet in its place. */
export function Entry({ swatch = "", colour, children }: EntryProps): JSX.Element {
  return (
    <span class="entry">
      <i class={`swatch ${swatch}`} style={colour === undefined ? {} : { background: `var(--${colour})` }} />
      {children}
    </span>
  );
}

/** The head of a table: classes and titles of its columns. */
export function Heads({ columns }: { columns: [string, ComponentChildren][] }): JSX.Element {
  return (
    <thead>
      <tr>
        {columns.map(([name, title], place) => (
          <th key={place} class={name}>
            {title}
          </th>
        ))}
      </tr>
    </thead>
  );
}
