package lvmd

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// answerWindow is how much of an answer lvmd may send ahead of what its client has
// read, in bytes: more than a list of 1,000 volumes takes. A fixed window also spares
// gRPC's measuring of the connection, a ping with each call.
const answerWindow = 1 << 20

// Dial makes a client of the lvmd at a unix socket. It connects when it is used
// first. The caller closes it.
func Dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:lvmd",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the socket's mode is what protects it
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithInitialWindowSize(answerWindow), grpc.WithInitialConnWindowSize(answerWindow))
	if err != nil {
		return nil, fmt.Errorf("lvmd's socket %q: %w", socket, err)
	}
	return conn, nil
}
