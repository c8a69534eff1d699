package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// recordPatterns are where the kubelet has its records of the volumes of CSI
// drivers, below its directory: of Pods' volumes, of staged ones, and of raw block
// ones.
var recordPatterns = []string{
	"pods/*/volumes/kubernetes.io~csi/*/" + record,
	"plugins/kubernetes.io/csi/*/*/" + record,
	"plugins/kubernetes.io/csi/volumeDevices/*/data/" + record,
}

// noted is what the kubelet's record says of a volume.
type noted struct {
	Driver string `json:"driverName"`
	Handle string `json:"volumeHandle"`
}

// readRecord reads one of the kubelet's records; it is empty if it went meanwhile.
func readRecord(file string) (noted, error) {
	var n noted
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(content, &n); err != nil {
		return n, fmt.Errorf("the kubelet's record %s: %w", file, err)
	}
	return n, nil
}

// pods returns the names of the entries of the kubelet's directory of Pods. There
// is always one, as the plugin is a Pod itself: without any, the directory is not
// the kubelet's.
func (n *Node) pods() ([]os.DirEntry, error) {
	dir := filepath.Join(n.options.KubeletDir, "pods")
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) == 0 {
		err = errors.New(dir + " is empty")
	}
	return entries, err
}

// believeRecords fails unless the lack of a record means something: where no
// volume of any driver has one, the directory is not the kubelet's, or the kubelet
// keeps its records elsewhere.
func (n *Node) believeRecords() error {
	if _, err := n.pods(); err != nil {
		return fmt.Errorf("the kubelet's records cannot be relied on: %w", err)
	}
	for _, pattern := range recordPatterns {
		files, err := filepath.Glob(filepath.Join(n.options.KubeletDir, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			if r, err := readRecord(file); err == nil && r.Driver != "" && r.Handle != "" {
				return nil
			}
		}
	}
	return fmt.Errorf("the kubelet's records cannot be relied on: there is no readable %s of any driver below %s", record, n.options.KubeletDir)
}

// believeAbsence fails unless the lack of a record of a leak means that the kubelet
// has forgotten it. A file that no known kubelet puts there may be its record.
func (n *Node) believeAbsence(l leak) error {
	if err := n.believeRecords(); err != nil {
		return err
	}
	dir := filepath.Dir(l.record)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); path != l.path {
			return fmt.Errorf("%s is not known: it may be a record of the kubelet's", path)
		}
	}
	return nil
}
