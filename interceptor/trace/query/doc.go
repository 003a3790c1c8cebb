// Package query selects records of a journal. An [Index] answers quickly and may be used while
// the gateway writes, by several processes and goroutines at once; see the package's example.
// [Scan] and [Recent] read the files without it, and [Follow] waits for more records. [Contexts]
// and [Summarize] count records, [Set.Show] gives the causes and effects of one. A [Set] of indexes
// gives pages, sums and branches in a time that does not grow with the journals. [Export] writes
// records with their proof.
//
// The index is a SQLite database beside the journal, or in the user's cache directory if the
// journal's directory is read-only. It is a cache: it only says which lines may match. Every
// record is read from the journal and checked against the filter there. Readers extend the index
// before they use it, so the gateway spends nothing on it. An index that is damaged, of another
// version or of other files is rebuilt. It has rows for the segments that exist: its size is
// about 17 % of a journal without payloads, less with payloads.
package query
