// Package kubelet interprets a kubelet's directory: the paths of volumes, and
// the kubelet's records beside them. It changes nothing there.
//
// The kubelet writes a record, vol_data.json, before the first call for a path,
// and removes it after unmounting, restarts included. Without a record no call
// for the path will come, provided that records are found in place, see
// RecordsReliable.
package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/driver/csierror"
)

const (
	// maxPath is Linux's PATH_MAX without the terminator.
	maxPath = 4095
	// record is the file in which the kubelet records what it requests of a CSI
	// driver.
	record = "vol_data.json"
	// plugins contains staged volumes and everything about raw block volumes.
	plugins = "plugins/kubernetes.io/csi"
)

// Dir is the kubelet's root directory, an absolute, clean path. Methods may be
// called concurrently.
type Dir string

func (d Dir) join(elements ...string) string {
	return filepath.Join(append([]string{string(d)}, elements...)...)
}

// MountDirs returns the directories that contain mounts of volumes: of Pods,
// and of staged and raw block volumes.
func (d Dir) MountDirs() []string { return []string{d.join("pods"), d.join(plugins)} }

// Contains reports whether path is clean and below the directory.
func (d Dir) Contains(path string) bool {
	return strings.HasPrefix(path, string(d)+"/") && filepath.Clean(path) == path
}

// CheckPath accepts paths strictly below the directory without symbolic links
// on the way: no mount, or worse the removal after it, may land elsewhere. It
// is here for clear errors about a request's field; package nofollow guards
// against links that appear later.
func (d Dir) CheckPath(field, path string) error {
	switch {
	case path == "":
		return csierror.Invalid(field, "a value is required")
	case len(path) > maxPath:
		return csierror.Invalid(field, "the path has %d bytes: allowed are %d", len(path), maxPath)
	case strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return csierror.Invalid(field, "%q has control characters", path)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return csierror.Invalid(field, "%q is not allowed: an absolute path without . and .. is", path)
	case !d.Contains(path):
		return csierror.Invalid(field, "%q is not allowed: paths below %s are", path, string(d))
	}
	// Skip the last component: it may be a mount of a dead device, and no
	// operation follows it as a link.
	for at := len(d) + 1; ; {
		slash := strings.IndexByte(path[at:], '/')
		if slash < 0 {
			return nil
		}
		at += slash
		info, err := os.Lstat(path[:at])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", field, err)
		case info.Mode()&fs.ModeSymlink != 0:
			return csierror.Invalid(field, "%q is not allowed: %s is a symbolic link", path, path[:at])
		case !info.IsDir():
			return csierror.Invalid(field, "%q is not allowed: %s is not a directory", path, path[:at])
		}
		at++
	}
}

// podMount returns the Pod of a path of the form that the kubelet gives to CSI
// volumes.
func (d Dir) podMount(path string) (pod string, ok bool) {
	part := strings.Split(strings.TrimPrefix(path, string(d)+"/"), "/")
	if len(part) != 6 || part[0] != "pods" || part[2] != "volumes" || part[3] != "kubernetes.io~csi" || part[5] != "mount" {
		return "", false
	}
	return part[1], true
}

// PodOf returns the UID of the Pod that owns a target path. It rejects paths
// that are not of the kubelet's form.
func (d Dir) PodOf(target string) (string, error) {
	pod, ok := d.podMount(target)
	if !ok {
		return "", csierror.Invalid("target_path", "%q is not allowed for an inline volume: %s is", target,
			d.join("pods/UID/volumes/kubernetes.io~csi/NAME/mount"))
	}
	return pod, nil
}

// UserOf returns the UID of the Pod that a volume is published to at path: a
// path of the Pod, or the publish path of a raw block volume.
func (d Dir) UserOf(path string) (pod string, ok bool) {
	if pod, ok := d.podMount(path); ok {
		return pod, true
	}
	relative, below := strings.CutPrefix(path, d.join(plugins, "volumeDevices/publish")+"/")
	_, pod, ok = strings.Cut(relative, "/")
	if !below || !ok || pod == "" || strings.Contains(pod, "/") {
		return "", false
	}
	return pod, true
}

// Pods returns the UIDs of the Pods with a directory, which exists from before
// their first volume until after their last, restarts included. It fails if
// there is none: the plugin is a Pod itself, so the directory is not the
// kubelet's.
func (d Dir) Pods() (map[string]bool, error) {
	dir := d.join("pods")
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) == 0 {
		err = errors.New(dir + " is empty")
	}
	pods := map[string]bool{}
	for _, e := range entries {
		pods[e.Name()] = true
	}
	return pods, err
}

// Mount is a path at which a kubelet has CSI drivers mount.
type Mount struct {
	Path string
	// Published is true at a Pod's path or a raw block volume's publish path,
	// false at a staging path of this driver.
	Published bool
	// Users is the directory below which other mounts of the device mean that
	// the path is in use.
	Users string
	// record is the path that the kubelet's record would have.
	record string
}

// Kind is "published" or "staged".
func (m Mount) Kind() string {
	if m.Published {
		return "published"
	}
	return "staged"
}

// Forgotten reports whether path has the form that the kubelet gives to CSI
// drivers, and no record.
func (d Dir) Forgotten(path string) (Mount, bool) {
	relative, below := strings.CutPrefix(path, string(d)+"/")
	if !below {
		return Mount{}, false
	}
	part := strings.Split(relative, "/")
	m := Mount{Path: path, Published: true, Users: string(d), record: filepath.Join(filepath.Dir(path), record)}
	pod, ofPod := d.podMount(path)
	switch {
	case ofPod:
		m.Users = d.join("pods", pod, "volume-subpaths")
	case len(part) == 7 && strings.HasPrefix(relative, plugins+"/volumeDevices/publish/"):
		m.record = d.join(plugins, "volumeDevices", part[5], "data", record)
	case len(part) == 6 && strings.HasPrefix(relative, plugins+"/"+names.Driver+"/") && part[5] == "globalmount":
		m.Published = false
	default:
		return Mount{}, false
	}
	_, err := os.Lstat(m.record)
	return m, errors.Is(err, fs.ErrNotExist)
}

// recordPatterns match the kubelet's records of CSI volumes: of Pods, staged,
// and raw block ones.
var recordPatterns = []string{
	"pods/*/volumes/kubernetes.io~csi/*/" + record,
	plugins + "/*/*/" + record,
	plugins + "/volumeDevices/*/data/" + record,
}

type volumeRecord struct {
	Driver string `json:"driverName"`
	Handle string `json:"volumeHandle"`
}

// readRecord returns an empty record if the file is gone.
func readRecord(file string) (volumeRecord, error) {
	var r volumeRecord
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(content, &r); err != nil {
		return r, fmt.Errorf("the kubelet's record %s: %w", file, err)
	}
	return r, nil
}

// RecordsReliable fails if no record of any driver exists: then the directory
// is not the kubelet's, or the kubelet keeps its records elsewhere, and a
// missing record means nothing.
func (d Dir) RecordsReliable() error {
	if _, err := d.Pods(); err != nil {
		return fmt.Errorf("the kubelet's records cannot be relied on: %w", err)
	}
	for _, pattern := range recordPatterns {
		files, err := filepath.Glob(d.join(pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			if r, err := readRecord(file); err == nil && r.Driver != "" && r.Handle != "" {
				return nil
			}
		}
	}
	return fmt.Errorf("the kubelet's records cannot be relied on: there is no readable %s of any driver below %s", record, string(d))
}

// AbsenceReliable fails if the missing record of m may not mean that the
// kubelet has forgotten it. A file that no known kubelet puts there may be its
// record.
func (d Dir) AbsenceReliable(m Mount) error {
	if err := d.RecordsReliable(); err != nil {
		return err
	}
	dir := filepath.Dir(m.record)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); path != m.Path {
			return fmt.Errorf("%s is not known: it may be a record of the kubelet's", path)
		}
	}
	return nil
}

// Recorded reports whether the kubelet has a record of staging a volume, with a
// file system or raw block. An unreadable record may be the one.
func (d Dir) Recorded(id string) (bool, error) {
	for _, pattern := range []string{
		d.join(plugins, names.Driver, "*", record),
		d.join(plugins, "volumeDevices", "*", "data", record),
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return false, err
		}
		for _, file := range files {
			r, err := readRecord(file)
			if err != nil || r.Handle == id && (r.Driver == "" || r.Driver == names.Driver) {
				return true, err
			}
		}
	}
	return false, nil
}
