package folding

import (
	"context"
	"errors"
	"fmt"
)

const (
	// checkpointAfter is how many transactions the log takes before it is
	// moved into the database.
	checkpointAfter = 1000
	// restartAfter is how many pages the log holds at most, more or less,
	// before it starts over: 32 MB.
	restartAfter = 8192
)

// written counts a transaction and asks for a checkpoint when one is due.
// d.write is held.
func (d *database) written() {
	if d.commits++; d.commits >= checkpointAfter {
		d.commits = 0
		select {
		case d.checkpoint <- struct{}{}:
		default:
		}
	}
}

// checkpoints moves the log into the database beside the writer, since that
// waits for the disk. The log starts over by itself once all of it has been
// moved; under writing that never pauses the writer is held for that, rarely.
func (d *database) checkpoints() {
	defer close(d.done)
	for {
		select {
		case <-d.quit:
			return
		case <-d.checkpoint:
		}
		// A failed checkpoint loses nothing: the log grows until one succeeds.
		var busy, log, moved int // pages
		err := d.db.QueryRow("PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &log, &moved)
		if err != nil || log < restartAfter {
			continue
		}
		d.write.Lock()
		_, _ = d.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(RESTART)")
		d.write.Unlock()
	}
}

// Close moves the log into the database and lets go of the files.
func (d *database) Close() error {
	close(d.quit)
	<-d.done
	return d.release()
}

// release closes what is open.
func (d *database) release() error {
	var errs []error
	if d.conn != nil {
		for _, s := range d.stmts {
			if s != nil {
				errs = append(errs, s.Close())
			}
		}
		errs = append(errs, d.conn.Close())
	}
	if d.db != nil {
		errs = append(errs, d.db.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("state database %s: %w", d.path, err)
	}
	return nil
}
