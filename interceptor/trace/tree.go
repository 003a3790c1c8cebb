package trace

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/foldgate/foldgate/folding/contextpath"
)

// treeNode is one context with its lines, in the order of the journal.
type treeNode struct {
	path     contextpath.Path
	lines    []string
	children []*treeNode // by their first record
}

// writeTree groups records by context: main first, then each root with its
// descendants below it, indented. Contexts that only have children appear too.
// A line names by number what it correlates to.
func writeTree(w io.Writer, records iter.Seq[*Record]) error {
	nodes := map[contextpath.Path]*treeNode{contextpath.Main: {}}
	numbers := map[string]uint64{} // id to seq
	var node func(p contextpath.Path) *treeNode
	node = func(p contextpath.Path) *treeNode {
		if n := nodes[p]; n != nil {
			return n
		}
		n := &treeNode{path: p}
		nodes[p] = n
		up := node(p.Parent())
		up.children = append(up.children, n)
		return n
	}
	for r := range records {
		numbers[r.ID] = r.Seq
		n := node(contextpath.Path(r.Context))
		n.lines = append(n.lines, treeLine(r, numbers))
	}
	bw := bufio.NewWriter(w)
	main := nodes[contextpath.Main]
	if len(main.lines) > 0 {
		fmt.Fprintln(bw, "main")
	}
	main.write(bw, 0)
	return bw.Flush()
}

func (n *treeNode) write(w io.Writer, depth int) {
	indent := strings.Repeat("  ", depth)
	if n.path != contextpath.Main {
		fmt.Fprintf(w, "%s%s\n", indent, clean(string(n.path)))
	}
	for _, line := range n.lines {
		fmt.Fprintf(w, "%s  %s\n", indent, line)
	}
	if n.path != contextpath.Main {
		depth++
	}
	for _, c := range n.children {
		c.write(w, depth)
	}
}

func treeLine(r *Record, numbers map[string]uint64) string {
	short := *r
	short.Context, short.ID = "", ""
	line := summary(&short)
	var causes []string
	for _, id := range r.CorrelationID {
		if seq, ok := numbers[id]; ok {
			causes = append(causes, fmt.Sprintf("#%d", seq))
		} else {
			causes = append(causes, clean(id))
		}
	}
	if len(causes) > 0 {
		line += " <- " + strings.Join(causes, " ")
	}
	return line
}
