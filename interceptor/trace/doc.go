// Package trace writes and verifies the journal: one record for each message that crosses
// foldgate and for each event in a branch's life. An auditor can tell who made a call, in which
// branch, its cost and its causes, and whether a line was changed or is missing.
//
// "Trace" in foldgate means this journal. An OpenTelemetry trace is a set of spans; comments here
// always call it that. [SpanID] and [TraceID] derive the ids of spans from records.
//
// A [Journal] is the one writer of a directory; see the package's example.
// [Verify] needs only the directory and may run beside the writer. Package
// query selects records, package render prints them.
//
// The journal is a series of files (segments) of JSON lines, chained by
// SHA-256, and a head file that anchors the last line. docs/trace.md states the
// format, the guarantees, and the records that each sync mode can lose.
//
// Lock order: Journal.writing before Journal.queueMu or headMu. The last two are never nested.
package trace
