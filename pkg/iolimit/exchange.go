package iolimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Names of the files through which the node plugin and the Applier work together, in
// directories of their own: each can write to one of them only.
const (
	requestFile = "request.json"
	reportFile  = "report.json"
)

// maxFile bounds a file that is read, in bytes: of ten thousand volumes one has 3 MB.
const maxFile = 16 << 20

// ErrTooLarge means that a file is larger than what either program writes.
var ErrTooLarge = errors.New("the file is too large")

// Device is a block device's number.
type Device struct {
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// String is the form that the kernel uses, such as 253:7.
func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Volume is one that Pods use.
type Volume struct {
	ID     string `json:"id"`
	Device Device `json:"device"`
	// Pods are the UIDs of those that have it, sorted.
	Pods   []string `json:"pods"`
	Limits Limits   `json:"limits"`
}

// Request is what the node plugin wants: all volumes that Pods use, those without limits
// included, so that limits that were lifted are known.
type Request struct {
	Volumes []Volume `json:"volumes"`
}

// Report is what came of a Request.
type Report struct {
	// At is when it was found. A report that gets old is of an Applier that does not run.
	At time.Time `json:"at"`
	// Problem is what keeps all limits from being applied on the node, or empty.
	Problem string `json:"problem,omitempty"`
	// Failures are why limits are not applied, by the volume's id.
	Failures map[string]string `json:"failures,omitempty"`
}

// Write puts the request into a directory.
func (r Request) Write(dir string) error { return write(filepath.Join(dir, requestFile), r) }

// ReadRequest reads it. fs.ErrNotExist: there is none yet.
func ReadRequest(dir string) (Request, error) {
	var r Request
	return r, read(filepath.Join(dir, requestFile), &r)
}

// Write puts the report into a directory.
func (r Report) Write(dir string) error { return write(filepath.Join(dir, reportFile), r) }

// ReadReport reads it. fs.ErrNotExist: there is none yet.
func ReadReport(dir string) (Report, error) {
	var r Report
	return r, read(filepath.Join(dir, reportFile), &r)
}

// write replaces a file in one step. It need not outlive a crash of the node, nor do cgroups.
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
