package driver

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/lvmdclient"
	"github.com/carve-csi/carve/pkg/must"
)

// alternating is an lvmd that answers the polls of Again, but the kubelet's
// only if well.
type alternating struct {
	lvmdv1.LVMDClient
	well, fails bool
}

func (l *alternating) ListClasses(context.Context, *lvmdv1.ListClassesRequest, ...grpc.CallOption) (*lvmdv1.ListClassesResponse, error) {
	if l.fails = !l.fails; l.fails && !l.well {
		return nil, errors.New("no answer")
	}
	return &lvmdv1.ListClassesResponse{}, nil
}

func TestRegistrationsOfAPluginWhoseLvmdDoesNotAnswerGrowRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		registration := NewRegistration("", NewMetrics(), log)
		lvmd := &alternating{}
		node := &Node{info: &nodeInfo{background: t.Context(), volumes: lvmdclient.Client{LVMDClient: lvmd}, registration: registration, log: log}}
		register := func() {
			lvmd.fails = false
			must.Get(node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}))(t)
		}
		pause := func() time.Duration {
			began := time.Now()
			register()
			<-registration.again
			return time.Since(began)
		}
		first := pause()
		if first > 2*askPause {
			t.Errorf("the plugin is registered again after %v", first)
		}
		last, rounds := first, 1
		for ; last < maxAgainPause; rounds++ {
			now := pause()
			if now < last*3/2 && now < maxAgainPause {
				t.Fatalf("round %d comes %v after the one before, which came after %v", rounds, now, last)
			}
			if last = now; rounds == 20 {
				t.Fatalf("after %d rounds the plugin is registered each %v", rounds, last)
			}
		}
		for range 3 {
			if now := pause(); now < maxAgainPause || now > maxAgainPause*5/4 {
				t.Errorf("the longest pause is %v, want about %v", now, maxAgainPause)
			}
		}
		lvmd.well = true
		register()
		lvmd.well = false
		if again := pause(); again > 2*askPause {
			t.Errorf("after lvmd answered, the plugin is registered again after %v", again)
		}
	})
}

type dead struct {
	lvmdv1.LVMDClient
	up atomic.Bool
}

func (l *dead) ListClasses(context.Context, *lvmdv1.ListClassesRequest, ...grpc.CallOption) (*lvmdv1.ListClassesResponse, error) {
	if !l.up.Load() {
		return nil, errors.New("no answer")
	}
	return &lvmdv1.ListClassesResponse{}, nil
}

func TestAPluginIsRegisteredAgainUnlessTheKubeletAsksByItself(t *testing.T) {
	for name, asks := range map[string]bool{"it asks": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				registration := NewRegistration("", NewMetrics(), log)
				lvmd := &dead{}
				node := &Node{info: &nodeInfo{background: t.Context(), volumes: lvmdclient.Client{LVMDClient: lvmd}, registration: registration, log: log}}
				ask := func() { must.Get(node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}))(t) }
				must.Get(registration.GetInfo(t.Context(), nil))(t)
				ask()
				must.Get(registration.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{PluginRegistered: true}))(t)
				if asks {
					ask()
				}
				lvmd.up.Store(true)
				time.Sleep(time.Minute)
				again := false
				select {
				case <-registration.again:
					again = true
				default:
				}
				if again == asks {
					t.Errorf("the plugin is registered again: %t", again)
				}
			})
		})
	}
}
