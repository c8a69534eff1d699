package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/uuid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd/lvmdfake"
	"github.com/carve-csi/carve/pkg/uplink"
)

const (
	defaultClass = "local"
	// leftExtents is the free space of a full node: too little for a Pod's volume, but enough for
	// its capacity to change.
	leftExtents = 2
)

type node struct {
	o    options
	lvmd *lvmdfake.Server
	log  *slog.Logger
	// groups has one slot per volume group, by device class: lvmd changes a group for one volume at
	// a time.
	groups map[string]*semaphore.Weighted
	// restarts requests a restart of a connected node, which calls Done when it runs again.
	restarts chan *sync.WaitGroup
}

func newNode(ctx context.Context, o options, name string, full bool, log *slog.Logger) (*node, error) {
	n := &node{o: o, log: log.With("node", name), groups: map[string]*semaphore.Weighted{}, restarts: make(chan *sync.WaitGroup)}
	var classes []lvmdfake.Class
	for i := range o.classes {
		class := className(i)
		classes = append(classes, lvmdfake.Class{Name: class, Default: i == 0, Bytes: o.bytes})
		n.groups[class] = semaphore.NewWeighted(1)
	}
	n.lvmd = lvmdfake.New(name, classes...)
	for i := range o.volumes {
		uid := string(uuid.NewUUID())
		owner := &lvmdv1.Owner{ClusterId: uid, ClaimNamespace: "held", ClaimName: fmt.Sprintf("%s-%d", name, i), ClaimUid: uid}
		if err := n.hold(ctx, "pvc-"+uid, className(i%o.classes), lvmdfake.AllocationUnit, owner); err != nil {
			return nil, err
		}
	}
	if full {
		reported, err := n.lvmd.ListClasses(ctx, &lvmdv1.ListClassesRequest{})
		if err != nil {
			return nil, fmt.Errorf("list classes: %w", err)
		}
		for _, class := range reported.GetClasses() {
			if err := n.hold(ctx, "rest-"+name+"-"+class.GetName(), class.GetName(), class.GetAvailableBytes()-leftExtents*lvmdfake.AllocationUnit, nil); err != nil {
				return nil, err
			}
		}
	}
	n.lvmd.SetHooks(lvmdfake.Hooks{
		BeforeCreate: func(ctx context.Context, r *lvmdv1.CreateVolumeRequest) error {
			return n.occupy(ctx, cmp.Or(r.GetDeviceClass(), defaultClass))
		},
		BeforeDelete: func(ctx context.Context, r *lvmdv1.DeleteVolumeRequest) error {
			found, err := n.lvmd.GetVolume(ctx, &lvmdv1.GetVolumeRequest{Id: r.GetId(), Name: r.GetName()})
			if err != nil {
				return nil //nolint:nilerr // the deletion itself says what there is to say
			}
			return n.occupy(ctx, found.GetVolume().GetDeviceClass())
		},
	})
	return n, nil
}

func className(i int) string {
	if i == 0 {
		return defaultClass
	}
	return fmt.Sprintf("%s-%d", defaultClass, i+1)
}

func (n *node) hold(ctx context.Context, name, class string, bytes int64, owner *lvmdv1.Owner) error {
	_, err := n.lvmd.CreateVolume(ctx, &lvmdv1.CreateVolumeRequest{
		Name: name, DeviceClass: class, RequiredBytes: bytes, Owner: owner, Mode: lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM,
	})
	if err != nil {
		return fmt.Errorf("make volume %s: %w", name, err)
	}
	return nil
}

// occupy holds the class's volume group for createTime.
func (n *node) occupy(ctx context.Context, class string) error {
	group := n.groups[class]
	if group == nil || n.o.createTime == 0 {
		return nil
	}
	if err := group.Acquire(ctx, 1); err != nil {
		return err
	}
	defer group.Release(1)
	return sleep(ctx, n.o.createTime)
}

func (n *node) run(ctx context.Context) error {
	for {
		restarted, err := n.connect(ctx)
		if err != nil || restarted == nil {
			return err
		}
		err = sleep(ctx, n.o.restartTime)
		n.lvmd.Restart(n.lvmd.Node())
		restarted.Done()
		if err != nil {
			return nil //nolint:nilerr // it was to end
		}
	}
}

// connect runs one lvmd process: it keeps an uplink to each replica until ctx is done or the node
// must restart. restarted is nil in the first case.
func (n *node) connect(ctx context.Context) (restarted *sync.WaitGroup, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	server := grpc.NewServer(uplink.ServerOptions()...)
	lvmdv1.RegisterLVMDServer(server, n.lvmd)
	defer server.Stop()
	group, ctx := errgroup.WithContext(ctx)
	for _, controller := range n.o.controllers {
		group.Go(func() error {
			return uplink.RunClient(ctx, uplink.ClientOptions{
				Addresses: controller, From: addressOf(n.lvmd.Node()), ServerName: n.o.serverName, CAFile: n.o.caFile, TokenFile: filepath.Join(n.o.tokens, n.lvmd.Node()),
				NodeName: n.lvmd.Node(), Version: "fake", Serve: server.Serve, Log: n.log,
			})
		})
	}
	group.Go(func() error {
		select {
		case restarted = <-n.restarts:
			end()
		case <-ctx.Done():
		}
		return nil
	})
	err = group.Wait()
	return restarted, err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
