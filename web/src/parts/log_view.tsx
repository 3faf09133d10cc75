/** The log of an attempt: read from its end, followed while the job runs, searched in the page and on the server. */

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { downloadAddress, getLog, searchLog } from "../api";
import { size } from "../format";
import { useKeys } from "../keys";
import { type Link, pieces, trackers } from "../links";
import { type Line, type Span, marked, parseLine, plain } from "../log";
import { type Hits, placeText, placesOf, searchAll, stepped } from "../log_search";
import { LogTail } from "../log_tail";
import { connection } from "../state";
import type { LogText } from "../types";
import { Chip } from "./controls";

const HEAD_BYTES = 16 * 1024;
const POLL_MS = 1000;
const TYPING_MS = 300;
const STREAMS: Record<string, string> = { out: "Output", err: "Errors" };

interface Props {
  label: string;
  attempt: number;
  /** Whether more may come. */
  live: boolean;
  found: (links: Link[]) => void;
}

export function LogView({ label, attempt, live, found }: Props): JSX.Element {
  const [stream, setStream] = useState("out");
  const [follow, setFollow] = useState(true);
  const [wrap, setWrap] = useState(true);
  const [search, setSearch] = useState("");
  const [match, setMatch] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const get = (offset: number, limit: number): Promise<LogText> => getLog(label, { attempt, stream, offset, limit });
  const tail = useMemo(() => new LogTail(get), [label, attempt, stream]);
  const { version, problem, changed } = useTail(tail, follow, live);
  const { lines } = tail;
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, follow, wrap]);
  useTrackers(tail, version, () => get(0, HEAD_BYTES), found);

  const here = useMemo(() => matchesIn(lines, search), [search, version]);
  const isWhole = version > 0 && tail.from === 0 && !tail.away;
  const { hits, busy } = useHits(search, isWhole, (text, before) => searchLog(label, { attempt, stream, text, before }));
  const places = useMemo(() => placesOf(hits, search, here, tail.from, tail.next), [hits, here]);
  const show = (place: number): void => {
    setMatch(place);
    setFollow(false);
    const line = matchesIn(tail.lines, search)[place] ?? 0;
    requestAnimationFrame(() => box.current?.querySelectorAll(".line")[line]?.scrollIntoView({ block: "center" }));
  };
  /** Change what is here, at the user's wish. */
  const moved = (reading: Promise<void>): Promise<void> => {
    setFollow(false);
    return reading.then(changed);
  };
  const goTo = (step: number): void => {
    const next = search ? stepped(places, match, step) : null;
    if (next && "match" in next) show(next.match);
    else if (next) void moved(tail.goTo(next.offset)).then(() => show(placeOf(hits, tail.from, next.offset)));
  };
  useEffect(() => {
    setMatch(0);
    if (here.length) show(0);
  }, [search]);
  useEffect(() => {
    if (search && !here.length) goTo(-1); // nothing is here, but the server found it elsewhere
  }, [hits]);

  const earlier = (): Promise<void> => moved(tail.readEarlier());
  useKeys({ f: () => setFollow((value) => !value), n: () => goTo(1), N: () => goTo(-1) });
  const scrolled = (): void => {
    const element = box.current;
    if (!element || tail.away) return;
    const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 24;
    if (atEnd !== follow) setFollow(atEnd);
  };
  return (
    <section class="card log" aria-label="log">
      <div class="log-tools">
        <h2>Log</h2>
        <span class="faint">{version ? size(tail.size) : ""}</span>
        {tail.streams.length > 1
          ? tail.streams.map((name) => (
              <Chip key={name} pressed={name === stream} press={() => setStream(name)}>
                {STREAMS[name] ?? name}
              </Chip>
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
          {search ? placeText(places, match, hits, busy) : ""}
        </span>
        <span class="buttons">
          {tail.from > 0 ? (
            <Chip press={() => void moved(tail.goTo(0)).then(() => box.current?.scrollTo(0, 0))}>First lines</Chip>
          ) : null}
          <a class="chip" href={downloadAddress(label, attempt, stream)} download="">
            Download
          </a>
          <Chip pressed={wrap} press={() => setWrap(!wrap)}>
            Wrap
          </Chip>
          <Chip pressed={follow} press={() => setFollow(!follow)} title="Follow (f)">
            Follow
          </Chip>
        </span>
      </div>
      <div
        class={`log-text ${wrap ? "wrap" : ""}`}
        ref={box}
        onScroll={scrolled}
        tabIndex={0}
        role="log"
        aria-live="off"
      >
        {tail.from > 0 ? (
          <button type="button" class="quiet" onClick={() => void earlier()}>
            Show earlier lines ({size(tail.from)} before)
          </button>
        ) : null}
        {problem ? <p class="problem">{problem}</p> : null}
        {version && !lines.length && !problem ? <p class="faint">Nothing was printed{live ? " yet" : ""}.</p> : null}
        <LogLines lines={lines} search={search} current={here[match]} />
        {tail.away ? (
          <button type="button" class="quiet" onClick={() => void moved(tail.readLater())}>
            Show later lines ({size(tail.size - tail.next)} after)
          </button>
        ) : null}
      </div>
    </section>
  );
}

/** The numbers of the lines that contain a text. */
function matchesIn(lines: Line[], search: string): number[] {
  const wanted = search.toLowerCase();
  return wanted ? lines.flatMap((line, index) => (plain(line).toLowerCase().includes(wanted) ? [index] : [])) : [];
}

/** Which of the matches that are here is the one at an offset. */
function placeOf(hits: Hits | null, from: number, offset: number): number {
  return hits?.offsets.filter((hit) => hit >= from && hit < offset).length ?? 0;
}

/** Searches all of the log, unless all of it is here. */
function useHits(
  text: string,
  isWhole: boolean,
  search: Parameters<typeof searchAll>[1],
): { hits: Hits | null; busy: boolean } {
  const [hits, setHits] = useState<Hits | null>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    setHits(null);
    setBusy(text !== "" && !isWhole);
    if (!text || isWhole) return undefined;
    let old = false;
    const timer = setTimeout(() => {
      searchAll(text, search, () => old)
        .then((found) => found && setHits(found), () => undefined)
        .finally(() => !old && setBusy(false));
    }, TYPING_MS);
    return () => {
      old = true;
      clearTimeout(timer);
    };
  }, [text, isWhole]);
  return { hits, busy };
}

/** Reads the log again and again until its end is known. */
function useTail(
  tail: LogTail,
  follow: boolean,
  live: boolean,
): { version: number; problem: string; changed: () => void } {
  const [version, setVersion] = useState(0);
  const [problem, setProblem] = useState("");
  const following = useRef(follow);
  following.current = follow;
  const changed = (): void => setVersion((value) => value + 1);
  useEffect(() => {
    let closed = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const turn = async (): Promise<void> => {
      let again = live;
      try {
        const isNew = document.hidden ? false : await tail.read(following.current);
        if (closed) return;
        if (isNew) changed();
        setProblem("");
        again = !tail.isComplete;
      } catch (error) {
        if (!closed) setProblem(error instanceof Error ? error.message : String(error));
      }
      if (again && !closed) timer = setTimeout(() => void turn(), tail.isBehind ? 0 : POLL_MS);
    };
    void turn();
    return () => {
      closed = true;
      clearTimeout(timer);
    };
  }, [tail, live, follow, connection.value === "live"]); // when the user follows again, the end is shown at once
  return { version, problem, changed };
}

/** Looks for pages of experiment trackers, also in the first lines, where they are printed. */
function useTrackers(
  tail: LogTail,
  version: number,
  getHead: () => Promise<LogText>,
  found: (links: Link[]) => void,
): void {
  const [head, setHead] = useState<string[]>([]);
  const isLong = tail.from > 0;
  useEffect(() => {
    if (!isLong) return;
    getHead().then(
      (part) => setHead(part.text.split("\n").map((line) => plain(parseLine(line)[0]))),
      () => undefined, // the links of the rest are enough
    );
  }, [tail, isLong]);
  useEffect(() => found(trackers([...head, ...tail.lines.map(plain)])), [tail, version, head]);
}

interface LinesProps {
  lines: Line[];
  search: string;
  current: number | undefined;
}

/** The lines. Elements of unchanged lines are used again, so that a long log costs little while it grows. */
function LogLines({ lines, search, current }: LinesProps): JSX.Element {
  const made = useMemo(() => new WeakMap<Line, JSX.Element>(), [search]);
  const element = (line: Line): JSX.Element => {
    const known = made.get(line) ?? <LogLine line={line} search={search} current={false} />;
    made.set(line, known);
    return known;
  };
  return (
    <>
      {lines.map((line, index) =>
        index === current ? <LogLine line={line} search={search} current /> : element(line),
      )}
    </>
  );
}

function LogLine({ line, search, current }: { line: Line; search: string; current: boolean }): JSX.Element {
  return (
    <div class={current ? "line current" : "line"}>
      {marked(line, search).map((span, place) => (
        <LogSpan key={place} span={span} />
      ))}
      {"\n"}
    </div>
  );
}

function LogSpan({ span }: { span: Span & { match?: boolean } }): JSX.Element {
  const { style } = span;
  const names = (["bold", "dim", "italic", "underline", "inverse"] as const).filter((name) => style[name]);
  const isOwn = !span.match && !style.inverse; // these have colours of their own
  const own = isOwn ? { color: style.colour ?? "", backgroundColor: style.background ?? "" } : {};
  const content = pieces(span.text).map((piece, place) =>
    piece.href ? (
      <a key={place} href={piece.href} target="_blank" rel="noopener noreferrer">
        {piece.text}
      </a>
    ) : (
      piece.text
    ),
  );
  return span.match || Object.keys(style).length ? (
    <span class={[...names, span.match ? "match" : ""].join(" ")} style={own}>
      {content}
    </span>
  ) : (
    <>{content}</>
  );
}
