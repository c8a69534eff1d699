package fleet

import (
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
)

// slowCodec counts concurrent decoding.
type slowCodec struct {
	encoding.CodecV2
	mu        sync.Mutex
	now, most int
	finish    chan struct{}
}

func (c *slowCodec) Unmarshal(encoded mem.BufferSlice, message any) error {
	c.count(1)
	defer c.count(-1)
	<-c.finish
	return c.CodecV2.Unmarshal(encoded, message)
}

func (c *slowCodec) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

func TestFewMessagesAreDecodedAtATime(t *testing.T) {
	const nodes = 1000
	for name, test := range map[string]struct {
		most   int
		reader func(*Fleet, encoding.CodecV2) encoding.CodecV2
		answer func() any
	}{
		"answers": {decodedAnswers, func(f *Fleet, c encoding.CodecV2) encoding.CodecV2 {
			return answerReader{c, f.answers}
		},
			func() any { return &lvmdv1.ListClassesResponse{} }},
		"reports": {decodedReports, func(f *Fleet, c encoding.CodecV2) encoding.CodecV2 {
			return &boundedReader{CodecV2: c, decoding: f.reports}
		}, func() any { return &lvmdv1.WatchResponse{} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := New(Options{})
				defer f.Close()
				codec := &slowCodec{CodecV2: protoCodec, finish: make(chan struct{})}
				reader := test.reader(f, codec)
				encoded := must.Get(protoCodec.Marshal(test.answer()))(t)
				var answering sync.WaitGroup
				for range nodes {
					answering.Go(func() {
						if err := reader.Unmarshal(encoded, test.answer()); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				close(codec.finish)
				answering.Wait()
				if codec.most != test.most {
					t.Errorf("%d are decoded at a time, want %d", codec.most, test.most)
				}
			})
		})
	}
}
