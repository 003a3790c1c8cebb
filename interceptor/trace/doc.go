// Package trace keeps the record of every message that crosses foldgate, so
// that an auditor can ask who called what, in which branch, at what cost and
// because of what, and can tell whether a line was changed or is missing.
//
// The writing side is one [Journal] for a directory:
//
//	j, err := trace.Open(dir, trace.Options{})
//	req := &trace.Record{From: "host:h#s1", To: []string{"upstream:files"}, Kind: "mcp/request:tools/call", Context: "br_1"}
//	err = j.Append(req)   // refuse the call if this fails: nothing has happened yet
//	...
//	err = j.Append(&trace.Record{Kind: "mcp/response:tools/call", CorrelationID: trace.IDs{req.ID}, Context: req.Context})
//	err = j.Close()
//
// The reading side needs only the directory and may run beside the writer:
// [Query] yields the records that a [Filter] selects, [Verify] checks the hash
// chain and the invariants, [Show] follows one message's causes and effects,
// [Contexts] and [Summarize] count, [Follow] waits for more, and [Write]
// renders as table, tree, jsonl, mew or otlp.
//
// The journal is a series of files of JSON lines, chained by SHA-256, and a
// head file that anchors the last line. docs/trace.md states the format, the
// guarantees, and what each sync mode can lose.
package trace
