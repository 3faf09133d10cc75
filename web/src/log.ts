/** Log text for display: carriage returns collapsed, ANSI colours as styles, all other control sequences removed. */

export interface Style {
  /** In the notation of style sheets. */
  colour?: string;
  background?: string;
  bold?: boolean;
  dim?: boolean;
  italic?: boolean;
  underline?: boolean;
  inverse?: boolean;
}

export interface Span {
  text: string;
  style: Style;
}

export type Line = Span[];

const NO_STYLE: Style = {};
// Control sequences, strings for the terminal (titles, links), and other escapes.
const ESCAPE = /\x1b(?:\[([0-?]*)([ -/]*[@-~])|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~])/g;
const CONTROL = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/g;
const UNFINISHED = /\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)$/;
const LONGEST_ESCAPE = 4096;

/** What remains of a line after its carriage returns: its last piece with text. */
export function collapsed(line: string): string {
  if (!line.includes("\r")) return line;
  return (
    line
      .split("\r")
      .filter((piece) => piece !== "")
      .at(-1) ?? ""
  );
}

/**
 * Turns parts of a log into lines.
 *
 * A part may end in the middle of a line, of a sequence or of a progress bar; the last line stays open and is replaced by the next part.
 */
export class LogReader {
  readonly lines: Line[] = [];
  private rest = "";
  private style: Style = NO_STYLE;
  /** The style at the start of the open line. */
  private startStyle: Style = NO_STYLE;
  private open = false;

  feed(part: string): void {
    const pieces = (this.rest + part).split("\n");
    if (this.open) this.lines.pop();
    this.style = this.startStyle;
    const last = pieces.pop() ?? "";
    for (const piece of pieces) this.lines.push(this.parsed(piece));
    this.startStyle = this.style;
    this.rest = last.length > 65_536 ? last.slice(-65_536) : last;
    this.open = this.rest !== "";
    if (this.open) this.lines.push(this.parsed(withoutUnfinished(this.rest)));
  }

  private parsed(line: string): Line {
    const [spans, style] = parseLine(collapsed(line), this.style);
    this.style = style;
    return spans;
  }
}

function withoutUnfinished(text: string): string {
  const tail = text.slice(-LONGEST_ESCAPE);
  const match = UNFINISHED.exec(tail);
  return match ? text.slice(0, text.length - match[0].length) : text;
}

/** The spans of one line, and the style after it. */
export function parseLine(line: string, start: Style = NO_STYLE): [Line, Style] {
  const spans: Line = [];
  let style = start;
  let position = 0;
  const take = (end: number): void => {
    const text = line.slice(position, end).replace(CONTROL, "");
    if (text) spans.push({ text, style });
  };
  for (const match of line.matchAll(ESCAPE)) {
    take(match.index);
    position = match.index + match[0].length;
    if (match[2] === "m") style = restyled(style, match[1] ?? "");
  }
  take(line.length);
  return [spans, style];
}

function restyled(style: Style, parameters: string): Style {
  const codes = parameters.split(/[;:]/).map((code) => (code === "" ? 0 : Number(code)));
  let next: Style = { ...style };
  for (let index = 0; index < codes.length; index++) {
    const code = codes[index] ?? 0;
    if (code === 38 || code === 48) {
      const [colour, used] = extendedColour(codes.slice(index + 1), code === 38 ? themeColour : themeGround);
      if (colour !== undefined) next[code === 38 ? "colour" : "background"] = colour;
      index += used;
    } else next = withCode(next, code);
  }
  return next;
}

const SWITCHES: Record<number, "bold" | "dim" | "italic" | "underline" | "inverse"> = {
  1: "bold",
  2: "dim",
  3: "italic",
  4: "underline",
  7: "inverse",
};
const RESETS: Record<number, (keyof Style)[]> = {
  22: ["bold", "dim"],
  23: ["italic"],
  24: ["underline"],
  27: ["inverse"],
  39: ["colour"],
  49: ["background"],
};

function withCode(style: Style, code: number): Style {
  if (code === 0) return {};
  if (code >= 30 && code <= 37) return { ...style, colour: themeColour(code - 30) };
  if (code >= 90 && code <= 97) return { ...style, colour: themeColour(code - 82) };
  if (code >= 40 && code <= 47) return { ...style, background: themeGround(code - 40) };
  if (code >= 100 && code <= 107) return { ...style, background: themeGround(code - 92) };
  const next = { ...style };
  const name = SWITCHES[code];
  if (name) next[name] = true;
  for (const reset of RESETS[code] ?? []) delete next[reset];
  return next;
}

/** A colour of the theme, from 0 to 15. */
function themeColour(index: number): string {
  return `var(--ansi-${index})`;
}

/** A colour of the theme behind text: pale, so that text of any colour can be read. */
function themeGround(index: number): string {
  const shade = index % 8 === 7 ? 7 : (index % 8) + 8;
  return `color-mix(in srgb, var(--ansi-${shade}) 30%, transparent)`;
}

/** The colour after 38 or 48, and how many codes it took. */
function extendedColour(codes: number[], theme: (index: number) => string): [string | undefined, number] {
  if (codes[0] === 5) return [indexedColour(codes[1] ?? 0, theme), 2];
  if (codes[0] === 2) return [hex(codes[1] ?? 0, codes[2] ?? 0, codes[3] ?? 0), 4];
  return [undefined, 0];
}

function indexedColour(index: number, theme: (index: number) => string): string {
  if (index < 16) return theme(index);
  if (index >= 232) return hex(8 + 10 * (index - 232), 8 + 10 * (index - 232), 8 + 10 * (index - 232));
  const cube = index - 16;
  const level = (step: number): number => (step === 0 ? 0 : 55 + 40 * step);
  return hex(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}

function hex(red: number, green: number, blue: number): string {
  const byte = (value: number): string =>
    Math.min(255, Math.max(0, value | 0))
      .toString(16)
      .padStart(2, "0");
  return `#${byte(red)}${byte(green)}${byte(blue)}`;
}

export function plain(line: Line): string {
  return line.map((span) => span.text).join("");
}

/** The spans of a line, cut at the matches of a search; matches are marked. */
export function marked(line: Line, search: string): (Span & { match?: boolean })[] {
  if (!search) return line;
  const text = plain(line).toLowerCase();
  const wanted = search.toLowerCase();
  if (text.length !== plain(line).length) return line;
  const cuts: [number, number][] = [];
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
    cuts.push([at, at + wanted.length]);
  }
  return cuts.length ? cut(line, cuts) : line;
}

function cut(line: Line, cuts: [number, number][]): (Span & { match?: boolean })[] {
  const found: (Span & { match?: boolean })[] = [];
  let begin = 0;
  for (const span of line) {
    const end = begin + span.text.length;
    let position = begin;
    const take = (to: number, match: boolean): void => {
      const part = { text: span.text.slice(position - begin, to - begin), style: span.style };
      if (part.text) found.push(match ? { ...part, match } : part);
      position = Math.max(position, to);
    };
    for (const [from, to] of cuts) {
      if (to <= begin || from >= end) continue;
      take(Math.max(begin, from), false);
      take(Math.min(end, to), true);
    }
    take(end, false);
    begin = end;
  }
  return found;
}
