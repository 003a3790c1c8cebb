package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/foldgate/foldgate/internal/sqlitedb"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/engine"
)

// state looks at the state directory, and leaves it as it is.
func (d *doctor) state(ctx context.Context) {
	dir := d.cfg.StatePath()
	info, above, fault := stateDir(dir)
	switch {
	case fault.Text != "":
		d.take(fault)
		return
	case above != dir:
		d.add(levelOK, "state", "", "%s is made with the first start", dir)
		d.space(freeBytes(above), 0)
		return
	}
	size, traces := sizes(dir)
	d.databases(ctx, dir)
	mode := info.Mode().Perm()
	open := mode&0o077 != 0 && runtime.GOOS != "windows"
	if open && ownedByMe(info) {
		d.add(levelWarn, "state", "chmod 700 "+dir, "other users can look into %s (mode %03o): it holds what servers have sent", dir, mode)
	}
	if fault := unwritable(dir, info); fault.Text != "" {
		d.take(fault)
	} else if !open {
		running := ""
		if found, err := control.Find(ctx, dir); err == nil {
			running = fmt.Sprintf("; gateways that run on it: %d", len(found))
		}
		d.add(levelOK, "state", "", "%s: %s, of it the trace %s%s", dir, megabytes(size), megabytes(traces), running)
	}
	d.space(freeBytes(dir), traces)
}

// sizes returns the bytes of the files in a state directory, and of those among them that are the trace.
func sizes(dir string) (all, traces int64) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		if i, err := e.Info(); err == nil {
			all += i.Size()
			if filepath.Base(filepath.Dir(path)) == "trace" {
				traces += i.Size()
			}
		}
		return nil
	})
	return all, traces
}

// databases looks for databases of a state directory that foldgate can't use.
func (d *doctor) databases(ctx context.Context, dir string) {
	entries, _ := os.ReadDir(dir) // without one there is no database
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		if !strings.HasSuffix(file, ".db") {
			continue
		}
		if err := engine.ExamineDatabase(ctx, file); err != nil {
			what, remedy := "is damaged", "restore it from a backup, or move it and its -wal file away: what it holds is lost then"
			switch {
			case errors.Is(err, sqlitedb.ErrEarly):
				what, remedy = "has an early form", "name another state_dir"
			case errors.Is(err, sqlitedb.ErrForeign):
				what, remedy = "is not foldgate's", "name another state_dir"
			case errors.Is(err, sqlitedb.ErrNewer):
				what, remedy = "is too new", "use that version, or name another state_dir"
			case e.Name() == "budgets.db":
				remedy = `restore it from a backup, or move it and its -wal file away and run "foldgate budgets rebuild"`
			}
			d.add(levelFault, "state", remedy, "%s %s, so foldgate does not start: %v", file, what, err)
		}
	}
}

// stateDir returns what is known of a state directory, and the directory itself or, if there is none, the one in
// which foldgate would make it. The fault is why it can't be made or is no directory, and has no text otherwise.
func stateDir(dir string) (info fs.FileInfo, above string, fault finding) {
	above = dir
	info, err := os.Stat(above)
	for (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) && filepath.Dir(above) != above {
		above = filepath.Dir(above)
		info, err = os.Stat(above)
	}
	if err == nil && info.IsDir() && above != dir {
		err = writable(above)
	}
	switch {
	case err != nil && above != dir:
		fault = stateFault("set state_dir to a directory that you can write", "%s can't be made: %v", dir, err)
	case err != nil:
		fault = stateFault("run foldgate as the user who owns it, or set state_dir to another", "%v", err)
	case !info.IsDir() && above != dir:
		fault = stateFault("set state_dir to a directory that you can write", "%s can't be made: %s is not a directory", dir, above)
	case !info.IsDir():
		fault = stateFault("remove the file, or set state_dir to another", "%s is not a directory", dir)
	}
	return info, above, fault
}

func stateFault(remedy, format string, args ...any) finding {
	return finding{levelFault, "state", fmt.Sprintf(format, args...), remedy}
}

// unwritable returns why a gateway of this user can't write in a state directory. It has no text if it can.
func unwritable(dir string, info fs.FileInfo) finding {
	if !ownedByMe(info) {
		return stateFault("run foldgate and this command as the user who owns it, such as with sudo -u", "%s belongs to another user", dir)
	}
	if mode := info.Mode().Perm(); mode&0o700 != 0o700 && runtime.GOOS != "windows" {
		return stateFault("chmod 700 "+dir, "%s has mode %03o: foldgate can't write it", dir, mode)
	}
	for _, dir := range []string{dir, filepath.Join(dir, "trace")} { // the trace may be on another disk
		if err := writable(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) { // recent tells of a trace that is a file
			return stateFault("make room on the disk, mount it for writing, or set state_dir to another", "%s can't be written: %v", dir, err)
		}
	}
	return finding{}
}

// writable returns why nothing can be written in a directory. What it writes, it removes.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString("x")
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

// A log file over largeLog bytes is worth a warning. Its last logTail bytes are read.
const (
	largeLog = 1 << 30
	logTail  = 1 << 20
)

// log looks at a file that foldgate logs to.
func (d *doctor) log(file string) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err := writable(filepath.Dir(file)); err != nil {
			d.add(levelFault, "log", "create the directory, or name another file with --log-file: foldgate does not start without it", "%s can't be made: %v", file, err)
			return
		}
		d.add(levelOK, "log", "", "%s is made with the first start", file)
		return
	}
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(file, os.O_APPEND|os.O_RDWR, 0) // a directory can't be written either
	}
	if err != nil {
		d.add(levelFault, "log", "give its user the right, or name another file with --log-file: foldgate does not start without it", "%v", err)
		return
	}
	defer f.Close()
	tail := make([]byte, min(info.Size(), logTail))
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		d.add(levelFault, "log", "name another file with --log-file", "%v", err)
		return
	}
	recent, last := 0, ""
	for line := range strings.Lines(string(tail)) {
		m := logLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if at, err := time.Parse(time.RFC3339, m[1]); err == nil && time.Since(at) < recently {
			recent, last = recent+1, strings.TrimSpace(m[2])
		}
	}
	if recent > 0 {
		d.add(levelWarn, "log", "read "+file, "%s has %s in 24 hours; the last: %.200s", file, count(recent, "error"), last)
	}
	if info.Size() > largeLog {
		d.add(levelWarn, "log", "rotate it: foldgate only appends, and opens it when it starts", "%s has %s", file, megabytes(info.Size()))
	}
	if recent == 0 && info.Size() <= largeLog {
		d.add(levelOK, "log", "", "%s: %s", file, megabytes(info.Size()))
	}
}

// logLine matches an error in foldgate's log: its time and what follows its level.
var logLine = regexp.MustCompile(`^(?:time=|\{"time":")([^\s"]+)"?[ ,]"?level"?[=:]"?ERROR"?[ ,](.*)`) // as text, or as JSON

// Free space, in bytes, below which there is a fault or a warning.
const (
	leastFree = 100 << 20
	scantFree = 1 << 30
)

// space judges the free space in bytes beside the size of the trace.
func (d *doctor) space(free, traces int64) {
	const less = "set trace.retain_files, lower results.quota_mb, or set state_dir to another disk"
	switch {
	case free < 0:
	case free < leastFree:
		d.add(levelFault, "disk", less, "%s are free: calls are refused when the trace can't be written (trace.on_error)", megabytes(free))
	case free < scantFree:
		d.add(levelWarn, "disk", less, "%s are free", megabytes(free))
	case d.cfg.Trace.RetainFiles == 0 && traces > free:
		d.add(levelWarn, "disk", less, "%s are free, and the trace has %s and keeps all", megabytes(free), megabytes(traces))
	default:
		d.add(levelOK, "disk", "", "%s are free", megabytes(free))
	}
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
