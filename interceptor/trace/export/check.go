package export

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Checker checks what a log store has of journals. Add reads its files, Reports gives the verdict.
type Checker struct {
	// Anchors are records that one of the journals must have, such as heads kept elsewhere.
	Anchors []trace.Anchor
	// Selection says that records were left out on purpose: each is checked, and not that none is missing.
	Selection bool

	journals map[string]*journal
}

// journal is what there is of one journal: 72 bytes for a record.
type journal struct {
	links  []link
	report trace.Report
}

// link is the place of a record in the chain.
type link struct {
	seq        uint64
	prev, hash [32]byte
}

// maxExportLine bounds a line of an export in bytes: one of OTLP JSON has a whole request.
const maxExportLine = 256 << 20

// otlpLogs is a request of OTLP logs in JSON, as far as Add reads it.
type otlpLogs struct {
	ResourceLogs []struct {
		ScopeLogs []struct {
			LogRecords []struct {
				Body       otlpValue
				Attributes []struct {
					Key   string
					Value otlpValue
				}
			}
		}
	}
}

type otlpValue struct{ StringValue string }

// Add reads an export: JSON Lines with OTLP requests, as the file exporter of a collector writes them,
// or with the bodies of log records alone. name says which file it is. Log records of other programs
// are left out.
//
// The bodies do not say which journal they are of, so a file of bodies is taken for one journal.
// Records may be repeated, and in any order.
func (c *Checker) Add(name string, in io.Reader) error {
	if c.journals == nil {
		c.journals = map[string]*journal{}
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 256<<10), maxExportLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var what struct {
			Protocol     string
			ResourceLogs json.RawMessage
		}
		err := json.Unmarshal(line, &what)
		switch {
		case err == nil && strings.HasPrefix(what.Protocol, "foldgate/trace."):
			c.journal(name).add(name, n, line)
		case err == nil && what.ResourceLogs != nil:
			var logs otlpLogs
			if err := json.Unmarshal(line, &logs); err != nil {
				return fmt.Errorf("%s:%d: %w", name, n, err)
			}
			c.addLogs(name, n, logs)
		default:
			return fmt.Errorf("%s:%d: this is neither a log record's body nor OTLP JSON: %.80q; export the bodies, one a line", name, n, line)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (c *Checker) addLogs(name string, n int, logs otlpLogs) {
	for _, r := range logs.ResourceLogs {
		for _, s := range r.ScopeLogs {
			for _, record := range s.LogRecords {
				for _, a := range record.Attributes {
					if a.Key == journalKey {
						c.journal(a.Value.StringValue).add(name, n, []byte(record.Body.StringValue))
						break
					}
				}
			}
		}
	}
}

func (c *Checker) journal(id string) *journal {
	j := c.journals[id]
	if j == nil {
		j = new(journal)
		c.journals[id] = j
	}
	return j
}

// add notes the place of a record, and checks the record alone.
func (j *journal) add(file string, n int, line []byte) {
	r, intact, err := trace.ParseLine(line)
	var l link
	if err == nil && (!decode(&l.prev, r.Prev) || !decode(&l.hash, r.Hash)) {
		err = fmt.Errorf("prev or hash is no SHA-256")
	}
	if err != nil {
		j.report.Add(trace.Fault{File: file, Line: n, Code: trace.FaultFormat, Text: "not a record: " + err.Error()})
		return
	}
	if !intact {
		j.report.Add(trace.Fault{File: file, Line: n, Seq: r.Seq, Code: trace.FaultHash, Text: fmt.Sprintf("record %d was changed: it does not have the hash %s", r.Seq, r.Hash)})
	}
	if r.Erased() {
		j.report.Erased++
	}
	l.seq = r.Seq
	j.links = append(j.links, l)
}

func decode(to *[32]byte, hash string) bool {
	digits, ok := strings.CutPrefix(hash, "sha256:")
	n, err := hex.Decode(to[:], []byte(digits[:min(len(digits), 64)]))
	return ok && err == nil && n == len(to) && len(digits) == 64
}

func hashText(h [32]byte) string { return "sha256:" + hex.EncodeToString(h[:]) }

// Reports returns a report for each journal, by its id or file. missing has a sentence for each
// anchor that none of them has. Add may not be called afterwards.
func (c *Checker) Reports() (reports map[string]trace.Report, missing []string) {
	reports = map[string]trace.Report{}
	held := make([]bool, len(c.Anchors))
	for id, j := range c.journals {
		j.check(c.Selection)
		for i, a := range c.Anchors {
			at, found := slices.BinarySearchFunc(j.links, a.Seq, func(l link, seq uint64) int { return cmp.Compare(l.seq, seq) })
			for ; found && at < len(j.links) && j.links[at].seq == a.Seq; at++ {
				held[i] = held[i] || hashText(j.links[at].hash) == a.Hash
			}
		}
		reports[id] = j.report
	}
	for i, a := range c.Anchors {
		if !held[i] {
			missing = append(missing, fmt.Sprintf("record %d with %s, which you hold, is in no journal of the export: it was changed, or is outside of the exported records", a.Seq, a.Hash))
		}
	}
	return reports, missing
}

// check puts the records in order, and checks that they follow one another.
func (j *journal) check(selection bool) {
	slices.SortFunc(j.links, func(a, b link) int { return cmp.Or(cmp.Compare(a.seq, b.seq), bytes.Compare(a.hash[:], b.hash[:])) })
	j.links = slices.CompactFunc(j.links, func(a, b link) bool { return a.seq == b.seq && a.hash == b.hash })
	j.report.Records = uint64(len(j.links))
	fault := func(seq uint64, code, format string, args ...any) {
		j.report.Add(trace.Fault{Seq: seq, Code: code, Text: fmt.Sprintf(format, args...)})
	}
	before, at := make([]link, 1), uint64(0) // record 1 continues zeros
	for rest := j.links; len(rest) > 0; {
		l, n := rest[0], 1
		for n < len(rest) && rest[n].seq == l.seq {
			n++
		}
		continues := func(b link) bool { return b.hash == l.prev }
		switch {
		case n > 1: // which of them belongs here is not told
			fault(l.seq, trace.FaultSeq, "there are %d records %d: %s and %s", n, l.seq, hashText(l.hash), hashText(rest[1].hash))
		case l.seq == at+1 && !slices.ContainsFunc(before, continues):
			fault(l.seq, trace.FaultPrev, "record %d does not continue record %d: its prev is %s, the hash before is %s", l.seq, at, hashText(l.prev), hashText(before[0].hash))
		case l.seq > at+1 && at == 0 && !selection:
			j.report.Notes = append(j.report.Notes, trace.Fault{Seq: l.seq, Code: trace.NoteEvent, Text: fmt.Sprintf("the export begins with record %d", l.seq)})
		case l.seq > at+1 && !selection:
			fault(l.seq, trace.FaultSeq, "records %d to %d are missing", at+1, l.seq-1)
		}
		before, at, rest = rest[:n], l.seq, rest[n:]
	}
	if n := len(j.links); n > 0 {
		j.report.First = trace.Anchor{Seq: j.links[0].seq, Hash: hashText(j.links[0].hash)}
		j.report.Last = trace.Anchor{Seq: j.links[n-1].seq, Hash: hashText(j.links[n-1].hash)}
	}
}
