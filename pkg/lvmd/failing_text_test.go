//go:build !kernel

package lvmd

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/logging/logtest"
)

// The error becomes an Event, and Events are counted by equal text. Each attempt's volume has
// its own id, which only the log has.
func TestACreationThatFailsSaysTheSameAtEachAttempt(t *testing.T) {
	m := newMachine(t)
	var ids, texts []string
	m.formatHook = func(_ context.Context, device string) error {
		ids = append(ids, filepath.Base(device))
		return &filesystem.CommandError{Args: []string{"mkfs.ext4"}, ExitCode: 1, Output: device + " is not so", Err: errors.New("exit status 1")}
	}
	var log logtest.Recorder
	d := m.start(t, func(_ *daemon, o *Options) { o.Log = log.Logger() })
	for range 2 {
		_, err := d.client.CreateVolume(t.Context(), settingsRequest("pvc-1", map[string]string{"bytes-per-inode": "64Ki"}))
		texts = append(texts, status.Convert(err).Message())
	}
	if texts[0] != texts[1] || !strings.Contains(texts[0], "/VOLUME is not so") || strings.Contains(texts[0], "pvc-1") {
		t.Errorf("the attempts say %q", texts)
	}
	if len(ids) != 2 || ids[0] == ids[1] {
		t.Fatalf("formatted were %q", ids)
	}
	for _, id := range ids {
		found := log.Find(func(r logtest.Record) bool {
			return r.Error() != nil && strings.Contains(r.Error().Error(), id+" is not so")
		})
		if len(found) != 1 {
			t.Errorf("of %s the log has %v", id, found)
		}
	}
}
