/** Boxes with words: tiles, facts, legends, tables, dialogs, links to jobs. */

import type { ComponentChildren, HTMLAttributes, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

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

/** Amounts in a line: `14.2 GPU-hours`. */
export function Totals({ amounts }: { amounts: [string, string][] }): JSX.Element {
  return (
    <p class="totals">
      {amounts.map(([amount, name]) => (
        <span key={name}>
          <b>{amount}</b> {name}
        </span>
      ))}
    </p>
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

/** A column of a table: its title, its cell for a row, and a class. */
export type Column<Row> = [title: ComponentChildren, cell: (row: Row) => ComponentChildren, name?: string];

interface TableProps<Row> {
  name: string;
  columns: Column<Row>[];
  rows: Row[];
  /** Further attributes of the element of a row. */
  attributes?: (row: Row, index: number) => HTMLAttributes<HTMLTableRowElement> & Record<`data-${string}`, unknown>;
}

export function Table<Row>({ name, columns, rows, attributes }: TableProps<Row>): JSX.Element {
  return (
    <table class={name}>
      <thead>
        <tr>
          {columns.map(([title, , of], place) => (
            <th key={place} class={of}>
              {title}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row, index) => (
          <tr key={index} {...attributes?.(row, index)}>
            {columns.map(([, cell, of], place) => (
              <td key={place} class={of}>
                {cell(row)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A small table, which scrolls sideways if it has no room. */
export function SmallTable<Row>(props: TableProps<Row>): JSX.Element {
  return (
    <div class="scroll">
      <Table {...props} name={`small ${props.name}`} />
    </div>
  );
}

interface ModalProps {
  title: string;
  close: () => void;
  children: ComponentChildren;
}

/** A dialog; it is open as long as it is there. */
export function Modal({ title, close, children }: ModalProps): JSX.Element {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => element.current?.showModal(), []);
  return (
    <dialog ref={element} onClose={close} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

/** The second line of an entry, cut off if it has no room: its tooltip has all of it. */
export function Second({ text, kind = "" }: { text: string; kind?: string }): JSX.Element {
  return (
    <span class={`second ${kind}`} title={text}>
      {text}
    </span>
  );
}

/** A link to a job, or to a line of several tasks. */
export function JobLink({ href, label, title }: { href: string; label: string; title: string }): JSX.Element {
  return (
    <a href={href} title={title}>
      <span class="id">{label}</span> {title}
    </a>
  );
}
