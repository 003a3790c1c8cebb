//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuOf returns the processor time that process pid alone has used, summed over
// its threads, in the scheduler's nanoseconds; where the kernel does not count
// those, in the ticks of /proc/PID/stat.
func cpuOf(pid int) time.Duration {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	sum := int64(0)
	for _, f := range files {
		raw, _ := os.ReadFile(f)
		on, _, _ := strings.Cut(string(raw), " ")
		n, _ := strconv.ParseInt(on, 10, 64)
		sum += n
	}
	if sum > 0 {
		return time.Duration(sum)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(raw, []byte(") ")) // the name may hold blanks
	fields := strings.Fields(string(rest))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * (time.Second / 100) // USER_HZ is 100 on every Linux
}

// rssOf returns the resident memory of process pid in bytes.
func rssOf(pid int) int64 {
	kb, _ := strconv.ParseInt(statusOf(pid, "VmRSS:"), 10, 64)
	return kb << 10
}

// statusOf returns a value of /proc/PID/status, "" if it is missing.
func statusOf(pid int, key string) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := bytes.Cut(raw, []byte(key))
	fields := strings.Fields(string(rest))
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}
