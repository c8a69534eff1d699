//go:build kernel

package lvmd_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carve-csi/carve/api/conditions"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// overwriteAt is durable when it returns.
func overwriteAt(t *testing.T, device string, pattern byte, off, length int64) {
	t.Helper()
	f := must.Get(os.OpenFile(device, os.O_WRONLY, 0))(t)
	must.Get(f.WriteAt(bytes.Repeat([]byte{pattern}, int(length)), off))(t)
	must.Succeed(t, errors.Join(f.Sync(), f.Close()))
}

// forgetMaking rolls the journal of an ended lvmd back to the creation of its volumes.
func (n *node) forgetMaking(t *testing.T) {
	t.Helper()
	n.rollBack(t, spec.Creating)
	j, _, _, err := journal.Open(n.journalFile())
	must.Succeed(t, err)
	defer j.Close()
	for _, r := range must.Get(j.Volumes())(t) {
		r.Encrypted = false
		must.Succeed(t, j.PutVolume(r))
	}
}

// The volumes belonged to a Pod and their headers were overwritten; the journal does not show
// that they were handed out.
func TestRealVolumesThatLostTheirHeaderAreKeptWhateverTheJournalSays(t *testing.T) {
	const size, pattern, damage = 16 << 20, 0x5a, 0x77
	n := newNode(t)
	p := n.start()
	all := p.available()
	crypt := luks.New("cryptsetup", luks.Cost{MemoryKiB: 32, Rounds: 4})
	var volumes []*lvmdv1.Volume
	requests := map[string]*lvmdv1.CreateVolumeRequest{}
	headers := map[string]byte{} // pattern in place of the header, by id
	for name, header := range map[string]byte{"pvc-zeroed": 0, "pvc-damaged": damage} {
		for suffix, fs := range map[string]string{"": "", "-ext4": "ext4"} {
			r := create(name+suffix, size, fs)
			r.Encryption = names.EncryptionLUKS
			v := p.create(r)
			must.Succeed(t, crypt.Format(t.Context(), v.GetDevicePath(), v.GetId(), []byte("key")))
			must.Succeed(t, crypt.Finish(t.Context(), v.GetDevicePath(), v.GetId()))
			must.Get(p.client.NoteEncrypted(t.Context(), &lvmdv1.NoteEncryptedRequest{Id: v.GetId()}))(t)
			overwriteAt(t, v.GetDevicePath(), pattern, luks.HeaderBytes, size)
			overwriteAt(t, v.GetDevicePath(), header, 0, luks.HeaderBytes)
			volumes, requests[v.GetId()], headers[v.GetId()] = append(volumes, v), r, header
		}
	}
	n.waitUntagged()

	check := func(when string) {
		t.Helper()
		for _, was := range volumes {
			id := was.GetId()
			v := p.volume(id)
			if v.GetName() != was.GetName() || v.GetSizeBytes() != was.GetSizeBytes() || !v.GetEncrypted() {
				t.Fatalf("%s: volume %v is now %v, want it to be known as encrypted", when, was, v)
			}
			again, err := p.client.CreateVolume(t.Context(), requests[id])
			if headers[id] == 0 {
				// The node plugin refuses to format a volume that was encrypted.
				if err != nil || again.GetVolume().GetId() != id || !again.GetVolume().GetEncrypted() {
					t.Errorf("%s: the same request for %s: %v, error %v", when, was.GetName(), again, err)
				}
			} else if c := v.GetConditions(); len(c) != 1 || c[0].GetType() != conditions.ContentsNotFound || status.Code(err) != codes.FailedPrecondition {
				t.Errorf("%s: %s has the conditions %v, and the same request the error %v", when, was.GetName(), c, err)
			}
			device := "/dev/" + n.group + "/" + id
			got := must.Get(os.ReadFile(device))(t)
			if int64(len(got)) != luks.HeaderBytes+size {
				t.Fatalf("%s: %s has %d bytes", when, was.GetName(), len(got))
			}
			if n := bytes.Count(got[:luks.HeaderBytes], []byte{headers[id]}); n != luks.HeaderBytes {
				t.Errorf("%s: %d bytes of the header of %s were written", when, luks.HeaderBytes-n, was.GetName())
			}
			if n := bytes.Count(got[luks.HeaderBytes:], []byte{pattern}); n != size {
				t.Errorf("%s: %d bytes of the data of %s were written", when, size-n, was.GetName())
			}
		}
	}
	for _, c := range []struct {
		when string
		do   func()
	}{
		{"the journal is rolled back", func() { n.forgetMaking(t) }},
		{"the journal is lost", func() { must.Succeed(t, os.Remove(n.journalFile())) }},
	} {
		must.Succeed(t, p.stop())
		c.do()
		for _, start := range []string{", first start", ", second start"} {
			p.kill()
			p = n.start()
			check(c.when + start)
		}
	}
	for _, v := range volumes {
		p.delete(v.GetId())
	}
	waittest.Until(t, "all space is back", func() bool { return p.available() == all && len(n.leftovers()) == 0 })
}
