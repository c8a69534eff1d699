//go:build !kernel

package lvmd

import (
	"sync/atomic"
	"testing"

	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
	"github.com/carve-csi/carve/pkg/lvmd/wakeup"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

type hangingDisk struct {
	lvm.Groups
	group string
	hangs atomic.Bool
	// answers is closed when the disk responds again; asked is set by reads in vain.
	answers chan struct{}
	asked   wakeup.Signal
}

func (s *hangingDisk) Metadata(group string) (ondisk.Metadata, error) {
	if group == s.group && s.hangs.Load() {
		s.asked.Set()
		<-s.answers
	}
	return s.Groups.Metadata(group)
}

func TestADiskThatDoesNotAnswerHoldsUpNoOtherGroup(t *testing.T) {
	m := twoGroups(t)
	disk := &hangingDisk{group: "large", answers: make(chan struct{}), asked: wakeup.New()}
	d := m.start(t, func(_ *daemon, o *Options) { disk.Groups, o.LVM = o.LVM, disk })
	free := func(class int) int64 { return d.state().GetClasses()[class].GetAvailableBytes() }
	disk.hangs.Store(true)
	<-disk.asked
	for _, group := range []string{testGroup, "large"} {
		must.Succeed(t, m.fake.Create(t.Context(), lvm.CreateOptions{Group: group, Volume: "theirs", Extents: testTotal}))
	}
	waittest.Until(t, "what others did to the other group is noticed", func() bool { return free(1) == 0 })
	if got := free(0); got != 2*testTotal*testExtent {
		t.Errorf("%d bytes available in both; of the disk that hangs nothing can be known", got)
	}
	disk.hangs.Store(false)
	close(disk.answers)
	waittest.Until(t, "the disk's group is looked at, too", func() bool { return free(0) == testTotal*testExtent })
}
