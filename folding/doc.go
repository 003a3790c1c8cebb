// Package folding keeps branches: isolated subtasks of an agent session, each
// with a token budget, a deadline and exactly one end; and the results that were
// too large for their place.
//
// A [Manager] is opened once per process on a [Repository]:
//
//	repo, err := folding.OpenSQLite("state/foldgate.db")
//	m, err := folding.Open(ctx, folding.DefaultConfig(), folding.Options{
//		Repository: repo, Count: counter.Count, Scrub: scrubber.Scrub,
//	})
//	defer m.Close(ctx)
//
// An agent's life with a branch is Create, some calls, Return:
//
//	b, err := m.Create(ctx, caller, folding.CreateRequest{Description: "find the parser"})
//	c, err := m.Begin(ctx, b.ID)          // a call in flight: c.Context() ends with the branch
//	err = c.Charge(argumentTokens)        // all or nothing
//	n, err := c.Take(resultTokens)        // at most what is left; durable when it returns
//	c.End(folding.CallOutcome{Tool: "read_file"})
//	r, err := m.Return(ctx, caller, b.ID, "the parser is in p.go")
//
// # Promises
//
// A branch ends once. Return, timeout, budget, the parent's end, the session's
// end and shutdown all go through one function under one lock; the first wins
// and the others are told what it was. Children end before their parent,
// deepest first. Calls in flight are cancelled with an [*EndedError].
//
// A charge is in the repository before Take or Charge returns, so that after
// a crash no delivered token is missing from the books.
//
// No operation sees a branch past its deadline, also where a timer is late
// (a suspended machine): deadlines are compared with the clock first.
//
// # Results
//
// [Results] is the other thing that the package owns: a store of results that
// were too large to deliver, in a database of its own, and of what that saved
// each branch. A result belongs to a branch and is read by those on its line.
//
//	res, err := folding.OpenResults("state/results.db", folding.ResultsConfig{Quota: 256 << 20, TTL: 24 * time.Hour})
//	err = res.Put(ctx, folding.StoredResult{Handle: folding.NewHandle(), Context: b.Context, Text: text})
//	stored, err := res.Get(ctx, caller, false, b.Context, handle)
//
// # Where what is
//
//	create.go, call.go, return.go            an agent's life with a branch
//	finish.go, reap.go, digest.go            how it ends, and what is left of it
//	manager.go, tree.go, limits.go           what is open, under one lock
//	session.go, thread.go, lookup.go         whose a branch is, and which is meant
//	repository.go, writer.go, sqlite*.go     its place on disk
//	store*.go                                the results
package folding
