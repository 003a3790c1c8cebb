// Package regexset finds the matches of many regular expressions in a text at once. The matches
// are those of package regexp, but a text takes the time of one pass plus that of the places
// where an expression may match.
//
// [Scratch.Scan] is the literal prefilter: it finds the literals that matches require
// (required.go, literals.go) and so the patterns that may match, and where. From these places a
// lazily built DFA runs (plan.go, dfa.go). Texts on which an expression starts everywhere and
// ends nowhere take linear time.
package regexset
