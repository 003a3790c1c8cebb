// Package folding manages branches. A branch is an isolated subtask of an agent session with a
// token budget, a deadline and exactly one end. Folding a branch means to end it with a message
// for its parent.
//
//	repo, err := folding.OpenSQLite("state/foldgate.db")
//	m, err := folding.Open(ctx, folding.DefaultConfig(), folding.Options{
//		Repository: repo, Count: counter.Count, Scrub: scrubber.Scrub,
//	})
//	defer m.Close(ctx)
//
//	b, err := m.Create(ctx, caller, folding.CreateRequest{Description: "find the parser"})
//	lease, err := m.Acquire(ctx, b.ID)      // a call: lease.Context() ends with the branch
//	err = lease.Charge(argumentTokens)      // all or nothing
//	n, err := lease.ChargeUpTo(resultTokens) // at most the rest; durable when it returns
//	lease.Release(folding.CallOutcome{Tool: "read_file"})
//	r, err := m.Return(ctx, caller, b.ID, "the parser is in p.go")
//
// # Promises
//
// A branch ends once. A return, the deadline, the budget, the end of the parent or of the session
// and the shutdown all call one function under one lock. The first one wins. Children end before
// their parent, deepest first. Running calls are cancelled with an [*EndedError].
//
// A charge is durable before Charge or ChargeUpTo returns. After a crash every delivered token is
// accounted for.
//
// No operation sees a branch past its deadline, even if a timer is late, as on a suspended
// machine: every operation first compares deadlines with the clock.
//
// # Locks
//
// Locks nest in this order: Manager.lateReturn, Manager.publishing, Manager.mu, writer.mu.
// Options.OnEvent runs under the first two only. The database has a lock of its own, which is
// taken under none of these.
package folding
