package adminsocket

import "golang.org/x/sys/unix"

// peerUID returns the user of the peer of a unix socket.
func peerUID(fd int) (uint32, error) {
	peer, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return 0, err
	}
	return peer.Uid, nil
}
