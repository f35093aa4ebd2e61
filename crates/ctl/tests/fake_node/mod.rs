//! A server whose responses a test defines.

use bytes::Bytes;
use ctl::NodeAddress;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// Runs `client` against a server that answers with `respond`.
pub(crate) fn with_server<T, F: Future<Output = Result<Response<Full<Bytes>>, hyper::Error>> + 'static>(
    respond: impl Fn(Request<Incoming>) -> F + Clone + 'static,
    client: impl AsyncFnOnce(NodeAddress) -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::task::spawn_local(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service_fn(respond.clone());
                tokio::task::spawn_local(
                    http1::Builder::new().serve_connection(TokioIo::new(socket), service),
                );
            }
        });
        client(NodeAddress::new(&address)).await
    })
}
