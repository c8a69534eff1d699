package lvmdclient

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/driver/csierror"
)

// stub answers with what it holds.
type stub struct {
	lvmdv1.LVMDClient
	volume  *lvmdv1.Volume
	pages   [][]*lvmdv1.Volume
	classes []*lvmdv1.DeviceClass
	// err is the error of every call, but the first pages of a list.
	err error
	// hangs makes calls wait until their context ends.
	hangs bool
}

func (s *stub) answer(ctx context.Context) error {
	if s.hangs {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return s.err
}

func (s *stub) GetVolume(ctx context.Context, _ *lvmdv1.GetVolumeRequest, _ ...grpc.CallOption) (*lvmdv1.GetVolumeResponse, error) {
	if err := s.answer(ctx); err != nil {
		return nil, err
	}
	return &lvmdv1.GetVolumeResponse{Volume: s.volume}, nil
}

// ListVolumes has the number of the next page as its token.
func (s *stub) ListVolumes(ctx context.Context, r *lvmdv1.ListVolumesRequest, _ ...grpc.CallOption) (*lvmdv1.ListVolumesResponse, error) {
	n := len(r.GetPageToken())
	if n == len(s.pages) {
		return &lvmdv1.ListVolumesResponse{}, s.answer(ctx)
	}
	return &lvmdv1.ListVolumesResponse{Volumes: s.pages[n], NextPageToken: r.GetPageToken() + "x"}, nil
}

func (s *stub) ListClasses(ctx context.Context, _ *lvmdv1.ListClassesRequest, _ ...grpc.CallOption) (*lvmdv1.ListClassesResponse, error) {
	if err := s.answer(ctx); err != nil {
		return nil, err
	}
	return &lvmdv1.ListClassesResponse{Classes: s.classes}, nil
}

func volume(id string, state lvmdv1.VolumeState) *lvmdv1.Volume {
	return &lvmdv1.Volume{Id: id, Name: "named-" + id, State: state}
}

const (
	ready    = lvmdv1.VolumeState_VOLUME_STATE_READY
	creating = lvmdv1.VolumeState_VOLUME_STATE_CREATING
)

func TestAnAnswerOrAnErrorHasTheCodeThatTheKubeletGets(t *testing.T) {
	questions := map[string]func(Client) (*lvmdv1.Volume, error){
		"Volume": func(c Client) (*lvmdv1.Volume, error) { return c.Volume(context.Background(), "v") },
		"Ready":  func(c Client) (*lvmdv1.Volume, error) { return c.Ready(context.Background(), "v") },
		"Named":  func(c Client) (*lvmdv1.Volume, error) { return c.Named(context.Background(), "named-v") },
	}
	for name, test := range map[string]struct {
		lvmd stub
		// codes and words of the errors, and whether a volume is returned.
		codes map[string]codes.Code
		words string
		none  bool
	}{
		"a volume that is ready": {lvmd: stub{volume: volume("v", ready)}},
		"one that is being created": {lvmd: stub{volume: volume("v", creating)},
			codes: map[string]codes.Code{"Ready": codes.Unavailable}, words: "v is still being created"},
		"another one than was asked for": {lvmd: stub{volume: volume("w", ready)},
			codes: map[string]codes.Code{"Volume": codes.Unknown, "Ready": codes.Unknown}, words: `"w" instead of "v"`},
		"none": {lvmd: stub{err: status.Error(codes.NotFound, "no volume")}, none: true,
			codes: map[string]codes.Code{"Volume": codes.NotFound, "Ready": codes.NotFound}, words: "lvmd: no volume"},
		"an error that lvmd explains": {lvmd: stub{err: status.Error(codes.FailedPrecondition, "why")}, none: true,
			codes: map[string]codes.Code{"Volume": codes.FailedPrecondition, "Ready": codes.FailedPrecondition, "Named": codes.FailedPrecondition}, words: "lvmd: why"},
		"no answer": {lvmd: stub{hangs: true}, none: true,
			codes: map[string]codes.Code{"Volume": codes.Unavailable, "Ready": codes.Unavailable, "Named": codes.Unavailable}, words: "lvmd did not answer within 5s"},
	} {
		for question, ask := range questions {
			t.Run(name+", "+question, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					begin := time.Now()
					v, err := ask(Client{&test.lvmd})
					if test.lvmd.hangs != (time.Since(begin) == Timeout) {
						t.Errorf("it took %v", time.Since(begin))
					}
					code, fails := test.codes[question]
					switch {
					case fails && (err == nil || csierror.CodeOf(err) != code || !strings.Contains(err.Error(), test.words)):
						t.Errorf("got %v with code %v, want %v with %q", err, csierror.CodeOf(err), code, test.words)
					case fails && strings.Contains(err.Error(), "rpc error"):
						t.Errorf("%q has gRPC's own words, which the kubelet adds once more", err)
					case !fails && err != nil:
						t.Error(err)
					case (v == nil) != test.none && !fails:
						t.Errorf("got %v", v)
					}
				})
			})
		}
	}
}

func ids(volumes []*lvmdv1.Volume) string {
	var all []string
	for _, v := range volumes {
		all = append(all, v.GetId())
	}
	return strings.Join(all, " ")
}

func TestAListHasAllPagesOrIsAnError(t *testing.T) {
	pages := [][]*lvmdv1.Volume{{volume("a", ready), volume("b", creating)}, {volume("c", ready)}}
	c := Client{&stub{pages: pages}}
	if all, err := c.All(t.Context()); err != nil || ids(all) != "a b c" {
		t.Errorf("all are %q, error %v", ids(all), err)
	}
	if ready, err := c.AllReady(t.Context()); err != nil || ids(ready) != "a c" {
		t.Errorf("ready are %q, error %v", ids(ready), err)
	}
	c = Client{&stub{pages: pages, err: status.Error(codes.Unavailable, "a disk is gone")}}
	for _, list := range []func(context.Context) ([]*lvmdv1.Volume, error){c.All, c.AllReady} {
		if part, err := list(t.Context()); len(part) > 0 || err == nil || err.Error() != "lvmd: a disk is gone" {
			t.Errorf("got %q, error %v after a page", ids(part), err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := Client{&stub{pages: pages, hangs: true}}.All(t.Context())
		if took := time.Since(begin); err == nil || took != Timeout {
			t.Errorf("error %v after %v, when lvmd stopped answering", err, took)
		}
	})
}

func TestClassesAreInTheOrderOfTheirNames(t *testing.T) {
	classes := []*lvmdv1.DeviceClass{{Name: "b"}, {Name: "c"}, {Name: "a"}}
	got, err := Client{&stub{classes: classes}}.Classes(t.Context())
	byName := slices.IsSortedFunc(got, func(a, b *lvmdv1.DeviceClass) int { return strings.Compare(a.GetName(), b.GetName()) })
	if err != nil || len(got) != 3 || !byName {
		t.Errorf("got %v, error %v", got, err)
	}
	_, err = Client{&stub{err: errors.New("broken")}}.Classes(t.Context())
	if csierror.CodeOf(err) != codes.Unknown || !strings.Contains(err.Error(), "lvmd: ") {
		t.Errorf("got %v", err)
	}
}
