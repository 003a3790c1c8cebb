//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// copyFrom is the smallest result for which the report adds the time of a plain JSON copy.
const copyFrom = 1 << 20

// compareCopy compares the time that foldgate adds to a call with a plain JSON copy of the
// answer, which encoding/json decodes and encodes again.
func compareCopy(w io.Writer, sc scenario, results []result) error {
	direct, foldgate := find(results, "direct"), find(results, "foldgate")
	if sc.size < copyFrom || sc.clients > 1 || len(direct) == 0 || len(foldgate) == 0 {
		return nil
	}
	call := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"text","arguments":{"size":%d}}}`, sc.size)
	answer := (&lean{texts: newTexts(sc.size/textLine + 1)}).answer(nil, call)
	if len(answer) < sc.size {
		return fmt.Errorf("the answer to copy has %d bytes: %.200s", len(answer), answer)
	}
	var copies []time.Duration
	for range 9 {
		start := time.Now()
		var v any
		if err := json.Unmarshal(answer, &v); err != nil {
			return fmt.Errorf("the answer to copy: %w", err)
		}
		if _, err := json.Marshal(v); err != nil {
			return fmt.Errorf("the answer to copy: %w", err)
		}
		copies = append(copies, time.Since(start))
	}
	middle := func(s sample) time.Duration { return s.p50 }
	added, plain := median(pick(foldgate, middle))-median(pick(direct, middle)), median(copies)
	_, err := fmt.Fprintf(w, "\nfoldgate adds %s ms, %.2f times a plain JSON copy of the answer (%s ms)\n", ms(added), float64(added)/float64(plain), ms(plain))
	return err
}
