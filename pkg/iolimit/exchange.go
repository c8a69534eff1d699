package iolimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Files of the node plugin and the Applier. Each is in a directory of its own,
// as each program may write only one.
const (
	requestFile = "request.json"
	reportFile  = "report.json"
)

// maxFile bounds a file to read, in bytes; ten thousand volumes take 3 MB.
const maxFile = 16 << 20

// ErrTooLarge means that a file is larger than either program would write.
var ErrTooLarge = errors.New("the file is too large")

// Device is a block device's numbers.
type Device struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// String returns the kernel's form, such as 253:7.
func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Volume is a volume that Pods use.
type Volume struct {
	ID     string `json:"id"`
	Device Device `json:"device"`
	// Pods are the sorted UIDs of the Pods that use the volume.
	Pods   []string `json:"pods"`
	Limits Limits   `json:"limits"`
}

// Request lists all volumes that Pods use. It includes those without limits, so
// that the Applier learns of lifted limits.
type Request struct {
	Volumes []Volume `json:"volumes"`
}

// Report is the result of a Request.
type Report struct {
	// At is the time of the result. An old report means that no Applier runs.
	At time.Time `json:"at"`
	// Problem is the reason why no limits can be applied on the node, or empty.
	Problem string `json:"problem,omitempty"`
	// Failures maps volume ids to the reason why limits are not applied.
	Failures map[string]string `json:"failures,omitempty"`
}

// Write writes the request to dir.
func (r Request) Write(dir string) error { return write(filepath.Join(dir, requestFile), r) }

// ReadRequest reads the request in dir. fs.ErrNotExist means that none exists
// yet.
func ReadRequest(dir string) (Request, error) {
	var r Request
	return r, read(filepath.Join(dir, requestFile), &r)
}

// Write writes the report to dir.
func (r Report) Write(dir string) error { return write(filepath.Join(dir, reportFile), r) }

// ReadReport reads the report in dir. fs.ErrNotExist means that none exists
// yet.
func ReadReport(dir string) (Report, error) {
	var r Report
	return r, read(filepath.Join(dir, reportFile), &r)
}

// write replaces a file atomically. Like cgroups, it need not survive a crash
// of the node.
func write(path string, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}

func read(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxFile {
		return fmt.Errorf("%s: %w: %d bytes", path, ErrTooLarge, info.Size())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
