package folding

import (
	"context"
	"errors"
	"fmt"
)

// checkpointAfter is how many transactions the log holds before it is moved
// into the database.
const checkpointAfter = 1000

// checkpoints moves the log into the database beside the writer, since that
// waits for the disk. The log can start over only when nothing is left in it,
// which under steady writing is never so: hence a second, short one with the
// writer held.
func (d *database) checkpoints() {
	defer close(d.done)
	for {
		select {
		case <-d.quit:
			return
		case <-d.checkpoint:
		}
		// A failed checkpoint loses nothing: the log grows until one succeeds.
		if _, err := d.db.Exec("PRAGMA wal_checkpoint(PASSIVE)"); err != nil {
			continue
		}
		d.write.Lock()
		if _, err := d.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(RESTART)"); err == nil {
			d.commits = 0
		}
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
