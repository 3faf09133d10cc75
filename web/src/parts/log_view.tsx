/** The log of an attempt: read from its end, followed while the job runs, searched in the page. */

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { getLog } from "../api";
import { size } from "../format";
import { useKeys } from "../keys";
import { type Link, pieces, trackers } from "../links";
import { type Line, LogReader, type Span, marked, plain } from "../log";
import { connection } from "../state";
import type { LogPart } from "../types";

const FIRST_BYTES = 64 * 1024;
const HEAD_BYTES = 16 * 1024;
const MORE_BYTES = 256 * 1024;
const MOST_LINES = 5000;
const POLL_MS = 1000;
const STREAMS: Record<string, string> = { out: "Output", err: "Errors" };

interface Props {
  label: string;
  attempt: number;
  /** Whether more may come. */
  live: boolean;
  found: (links: Link[]) => void;
}

interface Shown {
  reader: LogReader;
  /** The first byte that is shown, and the one after the last. */
  from: number;
  next: number;
  size: number;
  streams: string[];
}

/** Text from a place inside a file begins in the middle of a line; that line is left out. */
function wholeLines(part: LogPart): { text: string; from: number } {
  if (part.offset === 0) return { text: part.text, from: 0 };
  const end = part.text.indexOf("\n");
  return end < 0
    ? { text: part.text, from: part.offset }
    : { text: part.text.slice(end + 1), from: part.offset + bytes(part.text.slice(0, end + 1)) };
}

function bytes(text: string): number {
  return new TextEncoder().encode(text).length;
}

function started(part: LogPart): Shown {
  const { text, from } = wholeLines(part);
  const reader = new LogReader();
  reader.feed(text);
  return { reader, from, next: part.next, size: part.size, streams: part.streams };
}

export function LogView({ label, attempt, live, found }: Props): JSX.Element {
  const [shown, setShown] = useState<Shown | null>(null);
  const [problem, setProblem] = useState("");
  const [version, setVersion] = useState(0);
  const [follow, setFollow] = useState(true);
  const [search, setSearch] = useState("");
  const [stream, setStream] = useState("out");
  const [wrap, setWrap] = useState(true);
  const [match, setMatch] = useState(0);
  const [head, setHead] = useState<string[] | null>(null);
  const box = useRef<HTMLDivElement>(null);

  const get = (offset: number, limit: number): Promise<LogPart> => getLog(label, { attempt, stream, offset, limit });
  const read = async (known: Shown | null): Promise<Shown> => {
    if (!known) return started(await get(-FIRST_BYTES, FIRST_BYTES));
    const part = await get(known.next, MORE_BYTES);
    if (part.offset < known.next) return started(part); // the program wrote the file anew
    if (part.text) known.reader.feed(part.text);
    return { ...known, next: part.next, size: part.size };
  };

  useEffect(() => {
    let closed = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let known: Shown | null = null;
    const turn = async (): Promise<void> => {
      try {
        if (!document.hidden || !known) {
          const before = known?.next ?? -1;
          known = await read(known);
          if (closed) return;
          if (known.next !== before) {
            known.reader.trim(MOST_LINES);
            setShown({ ...known });
            setVersion((value) => value + 1);
          }
          setProblem("");
        }
      } catch (error) {
        if (!closed) setProblem(error instanceof Error ? error.message : String(error));
      }
      const rest = known && known.next < known.size;
      if (!closed && (live || rest || !known)) timer = setTimeout(() => void turn(), rest ? 0 : POLL_MS);
    };
    void turn();
    return () => {
      closed = true;
      clearTimeout(timer);
    };
  }, [label, attempt, stream, live, connection.value === "live"]);

  const lines = shown?.reader.lines ?? [];
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, follow, wrap]);
  // Trackers print their address at the start, which is not shown if the log is long.
  useEffect(() => {
    if (shown && shown.from > 0 && head === null) {
      setHead([]);
      get(0, HEAD_BYTES).then(
        (part) => setHead(started(part).reader.lines.map(plain)),
        () => undefined,
      );
    }
    found(trackers([...(head ?? []), ...lines.map(plain)]));
  }, [version, head]);

  const matches = useMemo(() => {
    const wanted = search.toLowerCase();
    return wanted ? lines.flatMap((line, index) => (plain(line).toLowerCase().includes(wanted) ? [index] : [])) : [];
  }, [search, version]);
  const goTo = (step: number): void => {
    if (!matches.length) return;
    const next = (match + step + matches.length) % matches.length;
    setMatch(next);
    setFollow(false);
    box.current?.querySelector(`[data-line="${matches[next]}"]`)?.scrollIntoView({ block: "center" });
  };
  useEffect(() => {
    setMatch(0);
    if (search && matches.length) goTo(0);
  }, [search]);

  const earlier = async (): Promise<void> => {
    if (!shown) return;
    const from = Math.max(0, shown.from - MORE_BYTES);
    const part = await get(from, shown.from - from);
    const before = started(part);
    const reader = new LogReader();
    reader.feed(wholeLines(part).text);
    setFollow(false);
    shown.reader.lines.unshift(...reader.lines);
    setShown({ ...shown, from: before.from });
    setVersion((value) => value + 1);
  };

  useKeys({ f: () => setFollow((value) => !value), n: () => goTo(1), N: () => goTo(-1) });
  const scrolled = (): void => {
    const element = box.current;
    if (!element) return;
    const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
    if (atEnd !== follow) setFollow(atEnd);
  };
  return (
    <section class="card log" aria-label="log">
      <div class="log-tools">
        <h2>Log</h2>
        <span class="faint">{shown ? size(shown.size) : ""}</span>
        {shown && shown.streams.length > 1
          ? shown.streams.map((name) => (
              <button
                key={name}
                type="button"
                class="chip"
                aria-pressed={name === stream}
                onClick={() => setStream(name)}
              >
                {STREAMS[name] ?? name}
              </button>
            ))
          : null}
        <input
          type="search"
          placeholder="Search the log  ( / )"
          aria-label="search the log"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Enter" && goTo(event.shiftKey ? -1 : 1)}
        />
        <span class="matches" role="status">
          {search ? (matches.length ? `${match + 1}/${matches.length}` : "none") : ""}
        </span>
        <button type="button" class="chip" aria-pressed={wrap} onClick={() => setWrap(!wrap)}>
          Wrap
        </button>
        <button type="button" class="chip" aria-pressed={follow} onClick={() => setFollow(!follow)} title="Follow (f)">
          Follow
        </button>
      </div>
      <div
        class={`log-text ${wrap ? "wrap" : ""}`}
        ref={box}
        onScroll={scrolled}
        tabIndex={0}
        role="log"
        aria-live="off"
      >
        {shown && shown.from > 0 ? (
          <button type="button" class="quiet" onClick={() => void earlier()}>
            Show earlier lines ({size(shown.from)} before)
          </button>
        ) : null}
        {problem ? <p class="problem">{problem}</p> : null}
        {shown && !lines.length && !problem ? <p class="faint">Nothing was printed{live ? " yet" : ""}.</p> : null}
        {lines.map((line, index) => (
          <LogLine
            key={index}
            index={index}
            line={line}
            search={search}
            current={search !== "" && matches[match] === index}
          />
        ))}
      </div>
    </section>
  );
}

function LogLine({
  line,
  index,
  search,
  current,
}: {
  line: Line;
  index: number;
  search: string;
  current: boolean;
}): JSX.Element {
  return (
    <div class={current ? "line current" : "line"} data-line={index}>
      {marked(line, search).map((span, place) => (
        <LogSpan key={place} span={span} />
      ))}
      {"\n"}
    </div>
  );
}

function LogSpan({ span }: { span: Span & { match?: boolean } }): JSX.Element {
  const { style } = span;
  const names = [
    typeof style.colour === "number" ? `fg-${style.colour}` : "",
    typeof style.background === "number" ? `bg-${style.background}` : "",
    ...(["bold", "dim", "italic", "underline", "inverse"] as const).map((name) => (style[name] ? name : "")),
    span.match ? "match" : "",
  ].filter(Boolean);
  const own: Record<string, string> = {};
  if (typeof style.colour === "string") own["color"] = style.colour;
  if (typeof style.background === "string") own["backgroundColor"] = style.background;
  const content = pieces(span.text).map((piece, place) =>
    piece.href ? (
      <a key={place} href={piece.href} target="_blank" rel="noopener noreferrer">
        {piece.text}
      </a>
    ) : (
      piece.text
    ),
  );
  return names.length || Object.keys(own).length ? (
    <span class={names.join(" ")} style={own}>
      {content}
    </span>
  ) : (
    <>{content}</>
  );
}
