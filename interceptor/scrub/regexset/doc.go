// Package regexset finds the matches of many regular expressions in a text at once. The matches
// are those of package regexp, but a text takes the time of one pass plus that of the places
// where an expression may match:
//
//	expr, err := regexset.Parse(`(?i)\b(?:key|token)\s*=\s*(\w+)`)
//	set, err := regexset.New([]regexset.Pattern{{Expr: expr}})
//	scratch := set.NewScratch() // one for each goroutine
//	err = scratch.Scan(text, limit)
//	for _, i := range scratch.Candidates() {
//		matches, err := scratch.FindAll(i)
//	}
//
// [Scratch.Scan] is the literal prefilter: it finds the literals that matches require
// (required.go, literals.go) and so the patterns that may match, and where. From these places a
// lazily built DFA runs (plan.go, dfa.go). Texts on which an expression starts everywhere and
// ends nowhere take linear time.
package regexset
