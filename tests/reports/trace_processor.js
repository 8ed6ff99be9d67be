// Runs Perfetto's trace processor, as its user interface runs it in a worker, over one trace.
// Arguments: the folder of the interface, the trace. Queries come on standard input, one a line;
// rows go to standard output, one JSON array of objects a line.
"use strict";
const fs = require("fs");
const path = require("path");

const node = process;
const [folder, trace] = node.argv.slice(2);

// Uncaught errors would be printed with the line of source they came from, of a hundred kB.
for (const what of ["uncaughtException", "unhandledRejection"])
  node.on(what, (error) => {
    node.stderr.write(`${String(error?.stack ?? error).slice(0, 2000)}\n`);
    node.exit(1);
  });

// It is built for a browser's worker, and refuses to run where it sees Node.
globalThis.process = undefined;
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: "http://localhost/engine_bundle.js" };
globalThis.XMLHttpRequest = class {
  open(_method, url) {
    this.response = fs.readFileSync(path.join(folder, path.basename(url)));
  }
  send() {}
};

// Protobuf by hand: perfetto/trace_processor/trace_processor.proto, TraceProcessorRpcStream.
const varint = (value) => {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
  return Buffer.from([...bytes, value]);
};
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const block = (field, bytes) => Buffer.concat([varint(field * 8 + 2), varint(bytes.length), bytes]);

function* fields(bytes) {
  let at = 0;
  const next = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = Number(next());
    if (key % 8 === 0) yield [key >> 3, next()];
    else if (key % 8 === 1) yield [key >> 3, bytes.subarray(at, (at += 8))];
    else if (key % 8 === 2) {
      const length = Number(next());
      yield [key >> 3, bytes.subarray(at, (at += length))];
    } else throw new Error(`wire type ${key % 8}`);
  }
}

const NULL = 1, INTEGER = 2, FLOAT = 3, TEXT = 4;

class Rows {
  constructor() {
    this.columns = [];
    this.cells = [];
    this.done = false;
  }
  read(result) {
    for (const [field, value] of fields(result)) {
      if (field === 1) this.columns.push(value.toString());
      else if (field === 2 && value.length) throw new Error(value.toString());
      else if (field === 3) this.batch(value);
    }
  }
  batch(batch) {
    const kinds = [], integers = [], floats = [];
    let texts = [];
    for (const [field, value] of fields(batch)) {
      if (field === 1) kinds.push(...value);
      else if (field === 2) for (let at = 0; at < value.length; ) {
        let end = at;
        while (value[end] > 127) end++;
        const [[, found]] = fields(Buffer.concat([varint(8), value.subarray(at, end + 1)]));
        integers.push(Number(BigInt.asIntN(64, found)));
        at = end + 1;
      }
      else if (field === 3) for (let at = 0; at < value.length; at += 8) floats.push(value.readDoubleLE(at));
      else if (field === 5) texts = value.toString().split("\0");
      else if (field === 6 && value) this.done = true;
    }
    for (const kind of kinds) {
      if (kind === NULL) this.cells.push(null);
      else if (kind === INTEGER) this.cells.push(integers.shift());
      else if (kind === FLOAT) this.cells.push(floats.shift());
      else if (kind === TEXT) this.cells.push(texts.shift());
      else throw new Error(`cell of kind ${kind}`);
    }
  }
  objects() {
    const width = this.columns.length, found = [];
    for (let at = 0; at < this.cells.length; at += width)
      found.push(Object.fromEntries(this.columns.map((name, i) => [name, this.cells[at + i]])));
    return found;
  }
}

const APPEND = 1, FINALIZE = 2, QUERY = 3;
let sequence = 0;
let rows = null;
const port = {
  postMessage(reply) {
    for (const [, rpc] of fields(Buffer.from(reply)))
      for (const [field, value] of fields(rpc)) {
        if (field === 5) throw new Error(value.toString());
        if (field === 201) for (const [inner, text] of fields(value)) if (inner === 2) throw new Error(text.toString());
        if (field === 203) rows.read(value);
      }
  },
};
const call = (method, ...more) => {
  const rpc = Buffer.concat([number(1, ++sequence), number(2, method), ...more]);
  port.onmessage({ data: new Uint8Array(block(1, rpc)) });
};

console.warn = () => {};
(0, eval)(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
globalThis.onmessage({ data: port });

// The module sets itself up in promises that are already kept.
setImmediate(() => {
  call(APPEND, block(101, fs.readFileSync(trace)));
  call(FINALIZE);
  const lines = [];
  for (const query of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
    rows = new Rows();
    call(QUERY, block(103, block(1, Buffer.from(query))));
    if (!rows.done) throw new Error(`no end of rows: ${query}`);
    lines.push(JSON.stringify(rows.objects()) + "\n");
  }
  // A pipe takes 64 KiB at once: leaving before it is empty would cut off the rest.
  node.stdout.write(lines.join(""), () => node.exit(0));
});
